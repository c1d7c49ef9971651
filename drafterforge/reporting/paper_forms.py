"""Forms of the papers' tables: their methods and benchmarks, our matching rows, and the commands that measure them."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.reporting.paper_evidence import BEST_STATIC, EXPERT, NONE, STATIC

FIGURES = {  # key -> heading, form, unit
    "mat": ("MAT", ".2f", ""),
    "tokens_per_s": ("tokens/s", ".1f", ""),
    "speedup": ("speed-up", ".2f", "x"),
    "accept_rate": ("block efficiency", ".3f", ""),
    "over_static": ("over the default tree", ".3f", "x"),
    "actions": ("trees used", ".0f", ""),
}
GENERALIST_ALONE, BEST_ALONE = "the generalist", "the best drafter"  # roles of a drafter that drafts alone
HEDGE, BANDITS = ("normalhedge", "hedgespec"), ("ucbspec", "exp3spec")
METASD = ("metasd_ucb", "metasd_exp3", "metasd_halving", "ucb1", "ucb1_sliding", "ucb1_discounted")


@dataclass(frozen=True)
class Line:
    """A method of a paper, and the keys of our matching rows."""

    name: str
    selector: str = STATIC
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
    commands: tuple[str, ...]  # that measure it
    live: bool = False  # whether live MAT is preferred over replayed MAT, as policies have only live rows


def _own_columns(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


ALONE = Line("EAGLE-3 (generalist)", drafter=GENERALIST_ALONE)
DEFAULT = Line("EAGLE-3 (default tree)", drafter=GENERALIST_ALONE)
BEST_TREE = Line("EAGLE-3 (best static tree)", drafter=GENERALIST_ALONE, schedule=BEST_STATIC)
RETRIEVAL = Line("retrieval (as PLD)", drafter="retrieval")
HINDSIGHT = Line("best in hindsight", "oracle", figures=("mat",))
DOMAINS = _own_columns(*POOL_DOMAINS)
RESPS_COLUMNS = {
    "MT-bench": ("mt_bench",),
    "HumanEval": ("humaneval",),
    "GSM8K": ("gsm8k",),
    "Alpaca": ("alpaca",),
    "CNN/DM": ("cnn_dm",),
}
LTD_COLUMNS = {"MT-bench": ("mt_bench",), "GSM8K": ("gsm8k",), "Alpaca": ("alpaca",), "QA": ("qa",)}
TRAIN = "drafterforge train-policy"


def _timed(suite: str, *methods: str) -> str:
    questions = " suite.questions=FOLDER" if suite == "papers" else ""
    return f'drafterforge eval suite={suite}{questions} "suite.methods=[{",".join(methods)}]"'


def _policies(*names: str) -> str:
    return _timed("papers", "generalist", *(f"generalist/{name}" for name in names))


def _policy(name: str, schedule: str) -> Line:
    return Line(name, drafter=GENERALIST_ALONE, schedule=schedule)


FORMS = (
    Form(
        "hedgespec",
        "HedgeSpec: drafter selection, by domain",
        "The paper's domains are Python, Math, Biology, Chemistry, MedicalQA, CNN/DM and SQL.",
        DOMAINS,
        ("mat", "tokens_per_s"),
        (
            ALONE,
            Line("the domain's expert", drafter=EXPERT),
            Line("UCBSpec", "ucbspec"),
            Line("EXP3Spec", "exp3spec"),
            Line("HedgeSpec (NormalHedge)", "normalhedge"),
            Line("HedgeSpec (ours)", "hedgespec"),
            HINDSIGHT,
        ),
        (_timed("domains", "generalist", "expert", *BANDITS, *HEDGE),),
    ),
    Form(
        "drafters",
        "HedgeSpec: each drafter alone, by domain",
        "Expected: an expert is best in its own domain, the generalist on average.",
        DOMAINS,
        ("mat",),
        (),  # filled with the drafters of the pool
        ("drafterforge eval suite=domains",),
    ),
    Form(
        "scaling",
        "HedgeSpec: pool scaling",
        "MAT against the number of drafters in the pool.",
        {},  # filled with the measured sizes
        ("mat",),
        (
            Line("HedgeSpec (NormalHedge)", "normalhedge"),
            Line("HedgeSpec (ours)", "hedgespec"),
            Line("UCBSpec", "ucbspec"),
            Line("EXP3Spec", "exp3spec"),
        ),
        (f'drafterforge eval suite=scaling "suite.selectors=[{",".join((*HEDGE, *BANDITS))}]"',),
    ),
    Form(
        "metasd",
        "MetaSD: drafter selection, by task",
        "Block efficiency is the share of drafted levels that were accepted, the paper's reward BE. The best drafter "
        "alone is the best of each column, if all drafters of the pool were measured there.",
        {
            "Code": ("humaneval", "python"),
            "Translation": ("spec_bench/translation", "translation"),
            "Summarization": ("cnn_dm", "summarization"),
            "QA": ("qa", "science"),
            "Math": ("gsm8k", "math"),
        },
        ("speedup", "mat", "accept_rate"),
        (
            Line("one for all (generalist)", drafter=GENERALIST_ALONE),
            Line("best drafter alone", drafter=BEST_ALONE),
            HINDSIGHT,
            Line("MetaSD-UCB", "metasd_ucb"),
            Line("MetaSD-EXP3", "metasd_exp3"),
            Line("MetaSD-SH (halving)", "metasd_halving"),
            Line("UCB1", "ucb1"),
            Line("UCB1, sliding window", "ucb1_sliding"),
            Line("UCB1, discounted", "ucb1_discounted"),
            RETRIEVAL,
        ),
        (_timed("papers", "generalist", "retrieval", *METASD),),
    ),
    Form(
        "banditspec",
        "BanditSpec: drafter selection, by benchmark",
        "Spec-Bench is the total of its six groups, if all were measured.",
        {"Spec-Bench": ("spec_bench",), "Alpaca": ("alpaca",)},
        ("mat", "tokens_per_s"),
        (
            Line("autoregressive", NONE, "autoregressive", NONE),
            RETRIEVAL,
            ALONE,
            Line("EXP3Spec", "exp3spec"),
            Line("UCBSpec", "ucbspec"),
        ),
        (_timed("papers", "generalist", "retrieval", *BANDITS),),
    ),
    Form(
        "resps",
        "Re-SpS: trees chosen by a policy, by benchmark",
        "Speed-up over autoregressive decoding; one drafter, the generalist.",
        RESPS_COLUMNS,
        ("speedup", "mat"),
        (
            DEFAULT,
            BEST_TREE,
            _policy("Re-SpS: standard PPO", "resps"),
            _policy("Re-SpS: max-entropy PPO", "resps-maxent"),
            _policy("planner (ours)", "planner"),
        ),
        (
            f"{TRAIN} policy=resps",
            f"{TRAIN} policy=resps-maxent name=resps-maxent",
            f"{TRAIN} policy=planner",
            _policies("resps", "resps-maxent", "planner"),
        ),
        live=True,
    ),
    Form(
        "resps_ablation",
        "Re-SpS: ablation of policy and state",
        "Tokens/s over those of the default tree, mean of five benchmarks, and the number of different trees.",
        {},
        ("over_static", "actions"),
        (
            _policy("standard PPO, text", "resps-text"),
            _policy("standard PPO, features", "resps"),
            _policy("max-entropy PPO, text", "resps-maxent-text"),
            _policy("max-entropy PPO, features", "resps-maxent"),
        ),
        (
            f"{TRAIN} policy=resps-text name=resps-text",
            f'{TRAIN} policy=resps-maxent "policy.parts=[text]" name=resps-maxent-text',
            _policies("resps-text", "resps", "resps-maxent-text", "resps-maxent"),
        ),
        live=True,
    ),
    Form(
        "ltd",
        "LTD: depth and size chosen by policies, by benchmark",
        "Speed-up over autoregressive decoding; one drafter, the generalist. "
        "The paper's static trees come from a grid search.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (DEFAULT, BEST_TREE, _policy("LTD", "ltd")),
        (f"{TRAIN} policy=ltd", _policies("ltd")),
        live=True,
    ),
    Form(
        "ltd_ablation",
        "LTD: its parts",
        "One of the two policies, both trained separately, both trained in turn.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (
            DEFAULT,
            _policy("size policy alone", "ltd-size"),
            _policy("depth policy alone", "ltd-depth"),
            _policy("both, each trained alone", "ltd-independent"),
            _policy("LTD", "ltd"),
        ),
        (
            *(f"{TRAIN} policy=ltd policy.decides={part} name=ltd-{part}" for part in ("size", "depth", "independent")),
            _policies("ltd-size", "ltd-depth", "ltd-independent", "ltd"),
        ),
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
        (
            f"{TRAIN} policy=ltd policy.decides=size policy.objective=accept_length name=ltd-size-length",
            f"{TRAIN} policy=ltd policy.decides=size policy.objective=time name=ltd-size-time",
            _policies("ltd-size-length", "ltd-size-time", "ltd-size"),
        ),
        live=True,
    ),
)
