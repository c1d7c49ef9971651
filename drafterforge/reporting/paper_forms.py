"""The forms of the papers' tables: methods down, benchmarks across; which rows of ours they are, what measures them."""

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
ONE, BEST = "the generalist", "the best drafter"  # who drafts alone
HEDGE, BANDITS = ("normalhedge", "hedgespec"), ("ucbspec", "exp3spec")
METASD = ("metasd_ucb", "metasd_exp3", "metasd_halving", "ucb1", "ucb1_sliding", "ucb1_discounted")


@dataclass(frozen=True)
class Line:
    """A method of a paper, and which rows of ours are it."""

    name: str
    selector: str = STATIC
    drafter: str = ""  # that drafts alone
    schedule: str = STATIC
    figures: tuple[str, ...] = ()  # that can be measured; empty: all of the table


@dataclass(frozen=True)
class Form:
    """The form of a paper's table: its methods down, its benchmarks across."""

    key: str
    title: str
    caption: str
    columns: dict[str, tuple[str, ...]]  # heading -> domains of our rows, the first that is known counts
    figures: tuple[str, ...]
    lines: tuple[Line, ...]
    commands: tuple[str, ...]  # what measures it
    live: bool = False  # whether MAT is that of timed decoding, where it is replayed too: policies are timed only


def _same(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


ALONE = Line("EAGLE-3 (generalist)", drafter=ONE)
DEFAULT = Line("EAGLE-3 (default tree)", drafter=ONE)
BEST_TREE = Line("EAGLE-3 (best static tree)", drafter=ONE, schedule=BEST_STATIC)
RETRIEVAL = Line("retrieval (as PLD)", drafter="retrieval")
HINDSIGHT = Line("best in hindsight", "oracle", figures=("mat",))
DOMAINS = _same(*POOL_DOMAINS)
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
    given = " suite.questions=FOLDER" if suite == "papers" else ""
    return f'drafterforge eval suite={suite}{given} "suite.methods=[{",".join(methods)}]"'


def _policies(*names: str) -> str:
    return _timed("papers", "generalist", *(f"generalist/{name}" for name in names))


def _policy(name: str, schedule: str) -> Line:
    return Line(name, drafter=ONE, schedule=schedule)


FORMS = (
    Form(
        "hedgespec",
        "HedgeSpec: drafters selected, by domain",
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
        "HedgeSpec: every drafter alone, by domain",
        "An expert is at its best in its own domain, the generalist on average.",
        DOMAINS,
        ("mat",),
        (),  # the drafters of the pool
        ("drafterforge eval suite=domains",),
    ),
    Form(
        "scaling",
        "HedgeSpec: pool scaling",
        "MAT against the number of drafters in the pool.",
        {},  # the sizes that were measured
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
        "MetaSD: drafters selected, by task",
        "Block efficiency is the share of drafted levels that were accepted, the paper's reward BE. The best drafter "
        "alone is that of each column, if every drafter of the pool was measured there.",
        {
            "Code": ("humaneval", "python"),
            "Translation": ("spec_bench/translation", "translation"),
            "Summarization": ("cnn_dm", "summarization"),
            "QA": ("qa", "science"),
            "Math": ("gsm8k", "math"),
        },
        ("speedup", "mat", "accept_rate"),
        (
            Line("one for all (generalist)", drafter=ONE),
            Line("best drafter alone", drafter=BEST),
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
        "BanditSpec: drafters selected, by benchmark",
        "Spec-Bench is that of all six groups, if each was measured.",
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
        "Tokens/s over the default tree, the mean of five benchmarks, and how many different trees a policy chose.",
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
        "The paper's static trees are those of a grid search.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (DEFAULT, BEST_TREE, _policy("LTD", "ltd")),
        (f"{TRAIN} policy=ltd", _policies("ltd")),
        live=True,
    ),
    Form(
        "ltd_ablation",
        "LTD: its parts",
        "One of the two policies, both trained apart, both trained in turn.",
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
            *(f"{TRAIN} policy=ltd policy.decides={one} name=ltd-{one}" for one in ("size", "depth", "independent")),
            _policies("ltd-size", "ltd-depth", "ltd-independent", "ltd"),
        ),
        live=True,
    ),
    Form(
        "ltd_rewards",
        "LTD: what the size policy is rewarded for",
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
