"""Forms of the papers' tables: their methods and benchmarks, our matching rows, and the steps that measure them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.evaluation.rows import ALL
from drafterforge.reporting.paper_evidence import (
    BEST_STATIC,
    EXPERT,
    FORESIGHT,
    MANY_DRAFTERS,
    NONE,
    SMALL_LMS,
    STATIC,
)
from drafterforge.reporting.paper_steps import (
    EAGLE_TREES,
    HOLD_CYCLES,
    POOL_SIZES,
    Reduction,
    commands_of,
    reductions_of,
)

FIGURES = {  # key -> heading, form, unit
    "mat": ("MAT", ".2f", ""),
    "tokens_per_s": ("tokens/s", ".1f", ""),
    "speedup": ("speed-up", ".2f", "x"),
    "accept_rate": ("block efficiency", ".3f", ""),
    "over_static": ("over the default tree", ".3f", "x"),
    "over_best": ("tokens/s over the best static tree", ".3f", "x"),
    "actions": ("trees used", ".0f", ""),
    "regret_cycles": ("regret in cycles a request", ".2f", ""),
    "verify_ms": ("ms a cycle, target", ".2f", ""),
    "draft_ms": ("ms a cycle, drafters", ".2f", ""),
    "select_ms": ("ms a cycle, selector", ".2f", ""),
    "draft_of_overhead": ("% of the overhead, drafting", ".1f", ""),
    "host_of_overhead": ("% of the overhead, trees", ".1f", ""),
    "schedule_of_overhead": ("% of the overhead, policy", ".2f", ""),
    "schedule_of_total": ("% of the time, policy", ".2f", ""),
    "accuracy": ("% sent to the right drafter", ".0f", ""),
    "faster_tasks": ("tasks faster than the default tree", ".0f", ""),
    "signal": ("signal strength R", ".3f", ""),
    "priced": ("replayed tokens/s over no drafting", ".2f", "x"),
}
GENERALIST_ALONE, BEST_ALONE = "the generalist", "the best drafter"  # roles of a drafter that drafts alone
TEMPERATURES, SOURCES = (0.0, 0.5, 1.0), ("replayed", "live")
NOT_IN_POOL = "not in the pool"  # a drafter of a paper that this pool has none like


@dataclass(frozen=True)
class Line:
    """A method of a paper, and the keys of our matching rows."""

    name: str
    selector: str = STATIC  # of the form `metasd_signal`: the reward
    drafter: str = ""  # the only drafter; empty: the selector chooses
    schedule: str = STATIC
    figures: tuple[str, ...] = ()  # measurable figures; empty: all of the table


@dataclass(frozen=True)
class Form:
    """Form of a paper's table: methods in rows, benchmarks in columns."""

    key: str
    title: str
    caption: str
    columns: dict[str, tuple[str, ...]]  # heading -> domains of our rows; the first measured one counts
    figures: tuple[str, ...]
    lines: tuple[Line, ...]
    steps: tuple[str, ...]  # that measure it, see `paper_steps`
    live: bool = False  # whether live MAT is preferred over replayed MAT, as policies have only live rows
    temperature: float = 0.0  # of the rows that count
    pool: str = ""  # key in `Evidence.pools`; empty: the pool of the other tables

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that measure it."""
        return commands_of(self.steps)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """What is smaller in these commands than in the paper."""
        return reductions_of(self.steps)


def _own_columns(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


ALONE = Line("EAGLE-3 (generalist)", drafter=GENERALIST_ALONE)
DEVICE_TREE = Line("EAGLE-3 (our tree for this device)", drafter=GENERALIST_ALONE)
EAGLE_TREE = {
    paper: Line("EAGLE-3 (default tree)", drafter=GENERALIST_ALONE, schedule=tree)
    for paper, tree in EAGLE_TREES.items()
}
BEST_TREE = Line("EAGLE-3 (best static tree)", drafter=GENERALIST_ALONE, schedule=BEST_STATIC)
RETRIEVAL = Line("retrieval (as PLD)", drafter="retrieval")
HINDSIGHT = Line("best in hindsight", "oracle", figures=("mat",))
UCBSPEC, EXP3SPEC = Line("UCBSpec", "ucbspec"), Line("EXP3Spec", "exp3spec")
HEDGESPEC = (
    Line("HedgeSpec (paper)", "hedgespec-paper"),
    Line("NormalHedge, best choice", "normalhedge"),
    Line("HedgeSpec (ours)", "hedgespec"),
)
DOMAINS = _own_columns(*POOL_DOMAINS)
EVERYTHING = {"all domains": (ALL,)}
RESPS_COLUMNS = {
    "MT-bench": ("mt_bench",),
    "HumanEval": ("humaneval",),
    "GSM8K": ("gsm8k",),
    "Alpaca": ("alpaca",),
    "CNN/DM": ("cnn_dm",),
}
METASD_COLUMNS = {
    "Code": ("humaneval", "python"),
    "Translation": ("spec_bench/translation", "translation"),
    "Summarization": ("cnn_dm", "summarization"),
    "QA": ("qa", "science"),
    "Math": ("gsm8k", "math"),
}
LTD_COLUMNS = {"MT-bench": ("mt_bench",), "GSM8K": ("gsm8k",), "Alpaca": ("alpaca",), "QA": ("qa",)}
PROMPTS = {"as written": ("as written",), "two answers": ("two_answers",), "role": ("role",), "language": ("language",)}
INTERVALS = {f"N = {count}": (str(count),) for count in HOLD_CYCLES}


METASD_LINES = (
    Line("one for all (generalist)", drafter=GENERALIST_ALONE),
    Line("best drafter alone", drafter=BEST_ALONE),
    HINDSIGHT,
    Line("MetaSD-UCB", "metasd_ucb"),
    Line("MetaSD-EXP3", "metasd_exp3"),
    Line("MetaSD-SH (halving)", "metasd_halving"),
    Line("UCB1", "ucb1"),
    Line("UCB1, sliding window", "ucb1_sliding"),
    Line("UCB1, discounted", "ucb1_discounted"),
)


def _policy(name: str, schedule: str, **more: tuple[str, ...]) -> Line:
    return Line(name, drafter=GENERALIST_ALONE, schedule=schedule, **more)


RESPS = _policy("Re-SpS: standard PPO", "resps")
RESPS_DRAWN = _policy("Re-SpS: standard PPO, drawn actions", "resps-drawn")
RESPS_MAXENT = _policy("Re-SpS: max-entropy PPO", "resps-maxent")
LTD = _policy("LTD", "ltd")
LTD_PARTS = (
    _policy("size policy alone", "ltd-size"),
    _policy("depth policy alone", "ltd-depth"),
    _policy("both, each trained alone", "ltd-independent"),
)
RESPS_ABLATION = (
    _policy("standard PPO, text", "resps-text"),
    _policy("standard PPO, features", "resps"),
    _policy("max-entropy PPO, text", "resps-maxent-text"),
    _policy("max-entropy PPO, features", "resps-maxent"),
)
POOL_ANSWERS = "answers to prompts of the pool's eight domains"
TREES = (
    "EAGLE's default tree is {} in our count of levels; the best static tree is that of the policies' grid on their "
    "training answers. Policies are trained by replay, on {}, not on the wall clock. Figures of policies are means "
    "over three training seeds, with the standard deviation. docs/schedulers.md lists what else differs from the "
    "paper."
)
FORMS = (
    Form(
        "hedgespec",
        "HedgeSpec: drafter selection, by domain",
        "The paper's domains are Python, Math, Biology, Chemistry, MedicalQA, CNN/DM and SQL. Its experts are whole "
        "heads, trained on domains that the public generalist had not seen; ours are LoRA adapters of rank 16 of a "
        "generalist that learned all eight domains, so they gain less. Answers end after 128 tokens: there are no "
        "long chains of reasoning.",
        DOMAINS,
        ("mat", "tokens_per_s"),
        (ALONE, Line("the domain's expert", drafter=EXPERT), UCBSPEC, EXP3SPEC, *HEDGESPEC, HINDSIGHT),
        ("domains", "domains-timed"),
    ),
    Form(
        "drafters",
        "HedgeSpec: each drafter alone, by domain",
        "Expected: an expert is best in its own domain, the generalist on average.",
        DOMAINS,
        ("mat",),
        (),  # filled with the drafters of the pool
        ("domains",),
    ),
    Form(
        "scaling",
        "HedgeSpec: pool scaling",
        "MAT against the number of drafters in the pool.",
        {},  # filled with the measured sizes
        ("mat",),
        (*HEDGESPEC, UCBSPEC, EXP3SPEC),
        ("domains",),
    ),
    Form(
        "many_drafters",
        "HedgeSpec: 32 drafters",
        "MAT against the number of drafters, up to 32 LoRA experts of one generalist: of eight domains, with two "
        "training seeds and two other ranks each, trained for 40 steps. Pools are drawn at random, four of each size; "
        "those that are timed begin with the generalist.",
        {f"N = {size}": (str(size),) for size in POOL_SIZES},
        ("mat",),
        (
            *HEDGESPEC[:-1],
            replace(HEDGESPEC[-1], figures=("mat", "tokens_per_s")),
            UCBSPEC,
            EXP3SPEC,
        ),
        ("many-drafters", "many-drafters-timed"),
        pool=MANY_DRAFTERS,
    ),
    Form(
        "regret",
        "HedgeSpec: regret",
        "Cycles above those of the best drafter of each request in hindsight, mean over requests.",
        EVERYTHING,
        ("regret_cycles",),
        (ALONE, UCBSPEC, EXP3SPEC, *HEDGESPEC),
        ("domains",),
    ),
    Form(
        "hedgespec_cost",
        "HedgeSpec: cost of a cycle",
        "Ours are milliseconds a cycle: all levels that are drafted, and the drafters that are evaluated. "
        "The paper's are of a single pass.",
        EVERYTHING,
        ("verify_ms", "draft_ms", "select_ms"),
        (Line("generalist alone", drafter=GENERALIST_ALONE, figures=("verify_ms", "draft_ms")), *HEDGESPEC),
        ("domains-timed",),
    ),
    Form(
        "router",
        "HedgeSpec: accuracy of an offline router on rephrased prompts",
        "The paper's router reads the prompt's text with BERT; ours reads the target's features, and half of the "
        "prompts that it learned from were rephrased, by other templates than those of this table.",
        PROMPTS,
        ("accuracy",),
        (Line("offline router", "router"),),
        ("router",),
    ),
    Form(
        "ood",
        "HedgeSpec: a router and online selection on rephrased prompts",
        "A stream of requests in wordings that the router was not trained on.",
        {"rephrased": ("ood",)},
        ("mat",),
        (ALONE, Line("offline router", "router"), UCBSPEC, EXP3SPEC, *HEDGESPEC, HINDSIGHT),
        ("router",),
    ),
    Form(
        "metasd",
        "MetaSD: drafter selection, by task",
        "Block efficiency is the share of drafted levels that were accepted, the paper's reward BE. The best drafter "
        "alone is the best of each column, if all drafters of the pool were measured there. The paper gives no value "
        "of its exploration strength; ours is 1.",
        METASD_COLUMNS,
        ("speedup", "mat", "accept_rate"),
        (*METASD_LINES, RETRIEVAL),
        ("benchmarks", "benchmarks-timed"),
    ),
    Form(
        "metasd_black_box",
        "MetaSD: small language models as drafters, by task",
        "The black box of the paper: drafters that see no features, here language models of two layers, one for all "
        "and one for each of five domains, trained for 200 steps on 1,600 answers.",
        METASD_COLUMNS,
        ("speedup", "mat", "accept_rate"),
        METASD_LINES,
        ("black-box", "black-box-timed"),
        pool=SMALL_LMS,
    ),
    Form(
        "metasd_signal",
        "MetaSD: signal strength of the rewards",
        "R of the best and the second drafter: the squared gap of their mean rewards over the larger variance, over "
        "all positions of the answers. The larger R, the fewer cycles a bandit needs to tell them apart.",
        METASD_COLUMNS,
        ("signal",),
        (
            Line("BD: 1 - TV", "divergence"),
            Line("BE: block efficiency", "efficiency"),
            Line("coverage (ours)", "coverage"),
        ),
        ("domains", "benchmarks"),
    ),
    Form(
        "banditspec",
        "BanditSpec: drafter selection, by benchmark",
        "Spec-Bench is the total of its six groups, if all were measured. The paper gives no value of its confidence "
        "delta; ours is 0.05. The paper's drafter is EAGLE-2, ours EAGLE-3.",
        {"Spec-Bench": ("spec_bench",), "Alpaca": ("alpaca",), **_own_columns("CodeEditor", "DebugBench")},
        ("mat", "tokens_per_s"),
        (
            Line("autoregressive", NONE, "autoregressive", NONE),
            RETRIEVAL,
            Line("REST", drafter=NOT_IN_POOL),
            Line("datastore (as suffix tree)", drafter="store"),
            ALONE,
            EXP3SPEC,
            UCBSPEC,
        ),
        ("benchmarks", "benchmarks-timed"),
    ),
    Form(
        "resps",
        "Re-SpS: trees chosen by a policy, by benchmark",
        "Speed-up over autoregressive decoding; one drafter, the generalist. The standard policy takes its best "
        "action, as the authors' code does; the paper's Table 4 draws actions at temperature 1: the row after it. "
        f"{TREES.format(EAGLE_TREES['resps'], POOL_ANSWERS)}",
        RESPS_COLUMNS,
        ("speedup", "mat"),
        (
            EAGLE_TREE["resps"],
            BEST_TREE,
            RESPS,
            RESPS_DRAWN,
            RESPS_MAXENT,
            DEVICE_TREE,
            _policy("planner (ours), Re-SpS's trees", "planner"),
        ),
        ("resps",),
        live=True,
    ),
    Form(
        "resps_ablation",
        "Re-SpS: ablation of policy and state",
        "Tokens/s over those of EAGLE's default tree, mean of five benchmarks, and the number of different trees. The "
        "paper's text is encoded by SBERT, ours is the mean embedding of the last 64 tokens.",
        {},
        ("over_static", "actions"),
        RESPS_ABLATION,
        ("resps", "resps-ablation"),
        live=True,
    ),
    Form(
        "resps_acceptance",
        "Re-SpS: acceptance",
        "Share of drafted levels that were accepted, and MAT. The paper's acceptance length counts otherwise than "
        "MAT. Its Tables 5, 7 and 8 are not in what was read.",
        RESPS_COLUMNS,
        ("accept_rate", "mat"),
        (EAGLE_TREE["resps"], RESPS),
        ("resps",),
        live=True,
    ),
    Form(
        "resps_overhead",
        "Re-SpS: overhead",
        "Shares of all time that is neither prefill nor verification.",
        {"MT-bench": ("mt_bench",)},
        ("draft_of_overhead", "host_of_overhead", "schedule_of_overhead"),
        (RESPS,),
        ("resps",),
        live=True,
    ),
    Form(
        "resps_caching",
        "Re-SpS: cycles for which a tree is held",
        "Figure 3 of the paper: speed against the length N of the interval in decoding; 10 cycles in training. "
        "Tokens/s over those of EAGLE's default tree, mean of five benchmarks, of one training seed.",
        INTERVALS,
        ("over_static",),
        (RESPS,),
        ("resps-caching",),
        live=True,
    ),
    Form(
        "ltd",
        "LTD: depth and size chosen by policies, by benchmark",
        "Speed-up over autoregressive decoding; one drafter, the generalist. The paper's static trees come from a grid "
        f"search. {TREES.format(EAGLE_TREES['ltd'], POOL_ANSWERS)}",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (EAGLE_TREE["ltd"], BEST_TREE, LTD, DEVICE_TREE),
        ("ltd",),
        live=True,
    ),
    Form(
        "ltd_sampled",
        "LTD: at temperature 1",
        "As the table above, sampled, with the same policies.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (EAGLE_TREE["ltd"], BEST_TREE, LTD),
        ("ltd-sampled",),
        live=True,
        temperature=1.0,
    ),
    Form(
        "ltd_ablation",
        "LTD: its parts",
        "One of the two policies, both trained separately, both trained in turn.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (EAGLE_TREE["ltd"], *LTD_PARTS, LTD),
        ("ltd", "ltd-ablation"),
        live=True,
    ),
    Form(
        "ltd_rewards",
        "LTD: reward of the size policy",
        "The size policy alone, with three rewards.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (
            _policy("accept length", "ltd-size-length"),
            _policy("time", "ltd-size-time"),
            _policy("throughput", "ltd-size"),
        ),
        ("ltd-ablation", "ltd-rewards"),
        live=True,
    ),
    Form(
        "ltd_overhead",
        "LTD: time of the policies",
        "",
        LTD_COLUMNS,
        ("schedule_of_total",),
        (LTD,),
        ("ltd",),
        live=True,
    ),
    Form(
        "ltd_mmlu",
        "LTD: tasks of MMLU",
        "Of 57 tasks, each in a question file mmlu_TASK.jsonl: those on which the policy, mean of three training "
        "seeds, emits more tokens/s than EAGLE's default tree.",
        _own_columns("MMLU"),
        ("faster_tasks",),
        (LTD,),
        ("ltd-mmlu",),
        live=True,
    ),
    Form(
        "sampled",
        "Selectors at three temperatures",
        "MAT on the prompts of all domains, replayed. A sampled answer confirms drafts as a greedy one does: the "
        "token that plain decoding samples at that seed is accepted. The papers verify by rejection instead; "
        "docs/results.md compares both. Options of selectors are the same at all temperatures.",
        {f"T = {temperature:g}": (f"{temperature:g}",) for temperature in TEMPERATURES},
        ("mat",),
        (ALONE, UCBSPEC, EXP3SPEC, Line("MetaSD-UCB", "metasd_ucb"), *HEDGESPEC, HINDSIGHT),
        ("domains", "sampled"),
    ),
    Form(
        "over_best",
        "Re-SpS and LTD: over the best static tree (our question)",
        "Tokens/s over the best static tree of the policy's own grid, on held-out prompts of the pool's domains, on "
        "this machine: replayed, with the standard deviation over three training seeds, and live, with a 95 % interval "
        "over seeds and prompts. Below 1, one tree is faster than the policy. At T = 0.5 and 1 policies are trained on "
        "sampled answers, too; the Re-SpS paper decodes greedily only.",
        _own_columns(*(f"T = {temperature:g}, {source}" for temperature in TEMPERATURES for source in SOURCES)),
        ("over_best",),
        (RESPS, RESPS_MAXENT, LTD, *LTD_PARTS),
        ("resps", "ltd", "ltd-ablation", "resps-sampled", "ltd-sampled"),
        live=True,
    ),
    Form(
        "priced",
        "Re-SpS and LTD: trees priced by other devices",
        "Recorded answers of this target, replayed in the seconds of the device in the heading: trees are judged where "
        "the papers measured them, not on this machine. Policies are trained on the same seconds, "
        "and the time of their networks is left out. Figures of policies are means over three training seeds, with the "
        "standard deviation. Marginal, ours, has LTD's trees.",
        {},  # filled with the devices
        ("priced",),
        (
            EAGLE_TREE["resps"],
            _policy("best static tree of Re-SpS", f"{BEST_STATIC} of resps-paper"),
            RESPS,
            RESPS_MAXENT,
            _policy("perfect foresight with Re-SpS's trees", f"{FORESIGHT} of resps-paper"),
            replace(EAGLE_TREE["ltd"], name="EAGLE-3 (LTD's default tree)"),
            _policy("best static tree of LTD", f"{BEST_STATIC} of ltd-paper"),
            LTD,
            _policy("marginal (ours)", "marginal"),
            _policy("perfect foresight with LTD's trees", f"{FORESIGHT} of ltd-paper"),
        ),
        ("resps-devices", "ltd-devices"),
    ),
)
