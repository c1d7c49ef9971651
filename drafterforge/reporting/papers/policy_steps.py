"""Steps that train and measure Re-SpS and LTD, by their papers' settings.

The rows that the papers lead with have three training seeds, and LTD its paper's budgets; ablations, intervals and
policies for sampled answers have a single seed.
"""

from __future__ import annotations

from dataclasses import replace

from drafterforge.reporting.papers.step import CLOCK, REPLAY, TRAIN, TREE, Reduction, Step, listed, timed

REPLAYED, DECODED, WELL_DECODED = (f"live.num_prompts={count}" for count in (0, 8, 24))
SAMPLED = (0.5, 1.0)  # temperatures
HOLD_CYCLES = (1, 10, 20, 30, 50)  # cycles for which Re-SpS holds a tree
SEEDS = (1, 2)  # of further trainings
EXPERIMENTS = {"resps": "resps_paper", "ltd": "ltd_paper"}
EAGLE_TREES = {"resps": "60/8/10", "ltd": "60/9/10"}  # of the papers' EAGLE-3, in our count of levels
TRACES = {
    "resps": (Reduction("traces.num_train", 160, "4,000 questions"),),
    "ltd": (Reduction("traces.max_new_tokens", 128, "256 tokens an answer"),),
}
BUDGETS = {
    "resps": (),
    "ltd": (
        Reduction("policy.size_decisions", 20_000, "100,000"),
        Reduction("policy.depth_decisions", 200_000, "1,000,000"),
    ),
}
PRICED = {paper: TRACES[paper] + BUDGETS[paper] for paper in TRACES}
SAMPLED_ANSWERS = "of policies trained on sampled answers"
ON_SAMPLED = {
    "resps": (Reduction("traces.num_train", 64, "4,000 questions", SAMPLED_ANSWERS),),
    "ltd": (*TRACES["ltd"], *(replace(size, part=SAMPLED_ANSWERS) for size in BUDGETS["ltd"])),
}
BENCHMARKS = {
    "resps": ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm"),
    "ltd": ("mt_bench", "gsm8k", "alpaca", "qa"),
}
QUESTIONS = 4  # that are timed of each benchmark; those of MT-bench have two turns
DEVICES = ("a100-8b", "h100-8b")


def _train(
    paper: str,
    name: str,
    *more: str,
    policy: str = "",
    seeds: tuple[int, ...] = (),
    smaller: tuple[Reduction, ...] = (),
    num_test: int = 32,
) -> str:
    """Train a policy by its paper's settings.  seeds: further ones.  smaller: sizes; empty: those of the traces."""
    nodes, depth, top_k = EAGLE_TREES[paper].split("/")
    words = [TRAIN, *([f"policy={policy}"] if policy else []), f"experiment={EXPERIMENTS[paper]}"]
    words += [*(f"{size.key}={size.value}" for size in smaller or TRACES[paper]), f"traces.num_test={num_test}"]
    words += [f"runtime.num_tokens={nodes}", f"runtime.depth={depth}", f"runtime.top_k={top_k}"]
    words += [f'"seeds={listed(*map(str, seeds))}"'] if seeds else []
    return " ".join([*words, *more, f"name={name}"])


def _priced(paper: str, name: str, device: str, policy: str = "") -> str:
    """Train in the published seconds of another device; `marginal`, ours, without a budget and seeds."""
    smaller, seeds = (PRICED[paper], SEEDS) if policy != "marginal" else (TRACES[paper], ())
    keys = f"latency={device}", REPLAYED
    return _train(paper, f"{name}-{device}", *keys, policy=policy, seeds=seeds, smaller=smaller)


def _sampled(paper: str, name: str, temperature: float, policy: str = "") -> str:
    """Train on sampled answers, which are recorded for each temperature."""
    keys = f"traces.temperature={temperature:g}", f"traces.name={paper}-t{temperature:g}", DECODED
    return _train(paper, f"{name}-t{temperature:g}", *keys, policy=policy, smaller=ON_SAMPLED[paper], num_test=16)


def with_seeds(name: str) -> list[str]:
    """A policy's name in every seed."""
    return [name, *(f"{name}-seed{seed}" for seed in SEEDS)]


def _decoded(paper: str, name: str, policies: list[str], questions: int = QUESTIONS, temperature: float = 0.0) -> str:
    """Time policies beside EAGLE's tree, the best static tree and the tree of this device."""
    trees = ("generalist", f"generalist/{EAGLE_TREES[paper]}", f"generalist/{TREE}")
    methods = (*trees, *(f"generalist/{policy}" for policy in policies))
    more = f"suite.temperature={temperature:g}" if temperature else ""
    return timed(name, BENCHMARKS[paper], questions, *methods, more=more)


def _on_devices(paper: str, minutes: int, *policies: tuple[str, str]) -> Step:
    """Train policies in the published seconds of other devices.  policies: name and policy; empty: the paper's."""
    trained = [(name, device, policy) for device in DEVICES for name, policy in policies]
    commands = tuple(_priced(paper, *words) for words in trained)
    reports = tuple(f"policy-{name}-{device}" for name, device, _ in trained)
    return Step(f"{paper}-devices", REPLAY, minutes, commands, reports, PRICED[paper], folder=paper)


REPLAYED_STEPS = (
    _on_devices("resps", 32, ("resps", ""), ("resps-maxent", "resps-maxent")),
    _on_devices("ltd", 27, ("ltd", ""), ("marginal", "marginal")),
)
TIMED_STEPS = (
    Step(
        "resps",
        CLOCK,
        46,
        (
            _train("resps", "resps", WELL_DECODED, seeds=SEEDS),
            _train("resps", "resps-drawn", "policy.temperature=1", REPLAYED),
            _train("resps", "resps-maxent", DECODED, policy="resps-maxent", seeds=SEEDS),
            _train("resps", "planner", REPLAYED, policy="planner"),
            _decoded(
                "resps",
                "papers-resps",
                [*with_seeds("resps"), "resps-drawn", *with_seeds("resps-maxent"), "planner"],
            ),
        ),
        ("papers-resps", "policy-resps", "policy-resps-drawn", "policy-resps-maxent", "policy-planner"),
        TRACES["resps"],
        tree_of="policy-resps",
        folder="resps",
    ),
    Step(
        "resps-ablation",
        CLOCK,
        13,
        (
            _train("resps", "resps-text", REPLAYED, policy="resps-text"),
            _train("resps", "resps-maxent-text", '"policy.parts=[text]"', REPLAYED, policy="resps-maxent"),
            _decoded("resps", "papers-resps-ablation", ["resps-text", "resps-maxent-text"]),
        ),
        ("papers-resps-ablation", "policy-resps-text", "policy-resps-maxent-text"),
        TRACES["resps"],
        tree_of="policy-resps-text",
        folder="resps",
    ),
    Step(
        "resps-caching",
        CLOCK,
        16,
        (
            *(_train("resps", f"resps-hold{count}", f"policy.hold_cycles={count}", REPLAYED) for count in HOLD_CYCLES),
            _decoded("resps", "papers-resps-caching", [f"resps-hold{count}" for count in HOLD_CYCLES], questions=2),
        ),
        ("papers-resps-caching", *(f"policy-resps-hold{count}" for count in HOLD_CYCLES)),
        TRACES["resps"],
        tree_of="policy-resps-hold1",
        folder="resps",
    ),
    Step(
        "ltd",
        CLOCK,
        115,
        (
            _train("ltd", "ltd", WELL_DECODED, seeds=SEEDS),
            _train("ltd", "marginal", REPLAYED, policy="marginal"),
            _decoded("ltd", "papers-ltd", with_seeds("ltd")),
        ),
        ("papers-ltd", "policy-ltd", "policy-marginal"),
        TRACES["ltd"],
        tree_of="policy-ltd",
        folder="ltd",
    ),
    Step(
        "ltd-ablation",
        CLOCK,
        30,
        (
            _train("ltd", "ltd-size", "policy.decides=size", "policy.max_depth=9", DECODED),
            _train("ltd", "ltd-depth", "policy.decides=depth", DECODED),
            _train("ltd", "ltd-independent", "policy.decides=independent", DECODED),
            _decoded("ltd", "papers-ltd-ablation", ["ltd-size", "ltd-depth", "ltd-independent"]),
        ),
        ("papers-ltd-ablation", "policy-ltd-size", "policy-ltd-depth", "policy-ltd-independent"),
        TRACES["ltd"],
        tree_of="policy-ltd-size",
        folder="ltd",
    ),
    Step(
        "ltd-rewards",
        CLOCK,
        17,
        (
            *(
                _train("ltd", name, "policy.decides=size", "policy.max_depth=9", f"policy.objective={reward}", REPLAYED)
                for name, reward in (("ltd-size-length", "accept_length"), ("ltd-size-time", "time"))
            ),
            _decoded("ltd", "papers-ltd-rewards", ["ltd-size-length", "ltd-size-time"]),
        ),
        ("papers-ltd-rewards", "policy-ltd-size-length", "policy-ltd-size-time"),
        TRACES["ltd"],
        tree_of="policy-ltd-size-length",
        folder="ltd",
    ),
    Step(
        "ltd-sampled",
        CLOCK,
        30,
        (
            *(_sampled("ltd", "ltd", temperature) for temperature in SAMPLED),
            _decoded("ltd", "papers-ltd-sampled", with_seeds("ltd"), temperature=1.0),
        ),
        ("papers-ltd-sampled", *(f"policy-ltd-t{temperature:g}" for temperature in SAMPLED)),
        ON_SAMPLED["ltd"],
        tree_of="policy-ltd",
        folder="ltd",
    ),
    Step(
        "ltd-mmlu",
        CLOCK,
        21,
        (
            "drafterforge eval suite=papers name=papers-ltd-mmlu suite.questions=MMLU limit=2 suite.timed_prompts=114 "
            "suite.replay=false suite.max_new_tokens=64 "
            f'"suite.methods={listed(*(f"generalist/{tree}" for tree in (EAGLE_TREES["ltd"], *with_seeds("ltd"))))}"',
        ),
        ("papers-ltd-mmlu",),
        TRACES["ltd"],
        folder="ltd",
    ),
    Step(
        "resps-sampled",
        CLOCK,
        32,
        tuple(
            _sampled("resps", name, temperature, policy)
            for temperature in SAMPLED
            for name, policy in (("resps", ""), ("resps-maxent", "resps-maxent"))
        ),
        tuple(f"policy-{name}-t{temperature:g}" for temperature in SAMPLED for name in ("resps", "resps-maxent")),
        ON_SAMPLED["resps"],
        folder="resps",
    ),
)
