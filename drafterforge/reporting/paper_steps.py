"""The commands that measure the papers' tables, in the order in which `scripts/papers_reports.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass

HEDGE, BANDITS = ("hedgespec-paper", "normalhedge", "hedgespec"), ("ucbspec", "exp3spec")
METASD = ("metasd_ucb", "metasd_exp3", "metasd_halving", "ucb1", "ucb1_sliding", "ucb1_discounted")
REPLAY, CLOCK = "replay", "clock"
TRAIN = "drafterforge train-policy"


@dataclass(frozen=True)
class Step:
    """Commands that make reports of the papers' tables."""

    name: str
    by: str  # replay: exact, on any machine, busy or not | clock: timed, on a machine at rest
    minutes: int  # on two cores
    commands: tuple[str, ...]
    reports: tuple[str, ...]  # names in the folder `reports`, or of a router in `policies`


def _listed(*names: str) -> str:
    return f"[{','.join(names)}]"


def _replayed(suite: str, name: str, more: str, *selectors: str) -> str:
    off = "suite.tuning_prompts=0 suite.timed_prompts=0 suite.check_live=false"
    return f'drafterforge eval suite={suite} name={name} {more} {off} "suite.selectors={_listed(*selectors)}"'


def _timed(name: str, *methods: str) -> str:
    more = "suite.questions=FOLDER limit=4 suite.replay=false"
    return f'drafterforge eval suite=papers name={name} {more} "suite.methods={_listed(*methods)}"'


def _policies(name: str, *policies: str) -> str:
    return _timed(name, "generalist", *(f"generalist/{policy}" for policy in policies))


def _priced(policy: str, device: str, *more: str) -> str:
    keys = [f"latency={device}", "grid=gpu", "traces.name=gpu", "traces.num_train=64", "traces.num_test=32"]
    keys += ["traces.score_top_k=10", "live.num_prompts=0", f"name={policy}-{device}", *more]
    keys += ["runtime.num_tokens=60", "runtime.depth=8", "runtime.top_k=10"]  # EAGLE's default tree
    return f"{TRAIN} policy={policy} {' '.join(keys)}"


DEVICES = ("a100-8b", "h100-8b")
PRICED = {"marginal": "policy.max_depth=10", "resps": "", "resps-maxent": "", "ltd": "policy.max_depth=10"}
STEPS = (
    Step(
        "domains",
        REPLAY,
        30,
        (_replayed("domains", "papers-domains", "suite.num_prompts=160", *HEDGE, *BANDITS, "metasd_ucb"),),
        ("papers-domains",),
    ),
    Step(
        "benchmarks",
        REPLAY,
        40,
        (
            _replayed(
                "papers",
                "papers-benchmarks",
                "suite.questions=FOLDER suite.num_prompts=12 suite.max_new_tokens=128",
                *METASD,
                *BANDITS,
                *HEDGE,
            ),
        ),
        ("papers-benchmarks",),
    ),
    Step(
        "router",
        REPLAY,
        20,
        (
            f"{TRAIN} policy=router",
            _replayed("ood", "papers-ood", "pool.router=router suite.num_prompts=64", *HEDGE, *BANDITS),
        ),
        ("router", "papers-ood"),
    ),
    Step(
        "other-devices",
        REPLAY,
        90,
        tuple(_priced(policy, device, more).rstrip() for device in DEVICES for policy, more in PRICED.items()),
        tuple(f"policy-{policy}-{device}" for device in DEVICES for policy in PRICED),
    ),
    Step(
        "domains-timed",
        CLOCK,
        25,
        (
            "drafterforge eval suite=domains name=papers-domains-timed limit=4 suite.replay=false "
            f'"suite.methods={_listed("generalist", "expert", *BANDITS, *HEDGE)}"',
        ),
        ("papers-domains-timed",),
    ),
    Step(
        "benchmarks-timed",
        CLOCK,
        60,
        (_timed("papers-benchmarks-timed", "generalist", "retrieval", "store", *METASD, *BANDITS),),
        ("papers-benchmarks-timed",),
    ),
    Step(
        "resps",
        CLOCK,
        60,
        (
            f"{TRAIN} policy=resps",
            f"{TRAIN} policy=resps-maxent name=resps-maxent",
            f"{TRAIN} policy=planner",
            _policies("papers-resps", "resps", "resps-maxent", "planner"),
        ),
        ("papers-resps", "policy-resps", "policy-resps-maxent", "policy-planner"),
    ),
    Step(
        "resps-ablation",
        CLOCK,
        60,
        (
            f"{TRAIN} policy=resps-text name=resps-text",
            f'{TRAIN} policy=resps-maxent "policy.parts=[text]" name=resps-maxent-text',
            _policies("papers-resps-ablation", "resps-text", "resps", "resps-maxent-text", "resps-maxent"),
        ),
        ("papers-resps-ablation", "policy-resps-text", "policy-resps-maxent-text"),
    ),
    Step(
        "ltd",
        CLOCK,
        60,
        (f"{TRAIN} policy=ltd", _policies("papers-ltd", "ltd")),
        ("papers-ltd", "policy-ltd"),
    ),
    Step(
        "ltd-ablation",
        CLOCK,
        90,
        (
            *(f"{TRAIN} policy=ltd policy.decides={part} name=ltd-{part}" for part in ("size", "depth", "independent")),
            _policies("papers-ltd-ablation", "ltd-size", "ltd-depth", "ltd-independent", "ltd"),
        ),
        ("papers-ltd-ablation", "policy-ltd-size", "policy-ltd-depth", "policy-ltd-independent"),
    ),
    Step(
        "ltd-rewards",
        CLOCK,
        60,
        (
            f"{TRAIN} policy=ltd policy.decides=size policy.objective=accept_length name=ltd-size-length",
            f"{TRAIN} policy=ltd policy.decides=size policy.objective=time name=ltd-size-time",
            _policies("papers-ltd-rewards", "ltd-size-length", "ltd-size-time", "ltd-size"),
        ),
        ("papers-ltd-rewards", "policy-ltd-size-length", "policy-ltd-size-time"),
    ),
)
BY_NAME = {step.name: step for step in STEPS}


def commands_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The commands of several steps, each once."""
    return tuple(dict.fromkeys(command for name in names for command in BY_NAME[name].commands))
