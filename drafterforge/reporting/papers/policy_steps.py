"""Steps that train and measure Re-SpS and LTD, by their papers' settings."""

from __future__ import annotations

from drafterforge.reporting.papers.step import CLOCK, REPLAY, TRAIN, TREE, Reduction, Step, listed, timed

LIMITS = {"resps": 2, "ltd": 4}  # questions of each benchmark: Re-SpS's trees are up to 32 wide
REPLAYED, DECODED = "live.num_prompts=0", "live.num_prompts=12"
SAMPLED = (0.5, 1.0)  # temperatures
HOLD_CYCLES = (1, 10, 20, 30, 50)  # cycles for which Re-SpS holds a tree
SEEDS = (1, 2)  # of further trainings
EXPERIMENTS = {"resps": "resps_paper", "ltd": "ltd_paper"}
EAGLE_TREES = {"resps": "60/8/10", "ltd": "60/9/10"}  # of the papers' EAGLE-3, in our count of levels
REDUCTIONS = {
    "resps": (Reduction("traces.num_train", 200, "4,000 questions"),),
    "ltd": (
        Reduction("policy.size_decisions", 20_000, "100,000"),
        Reduction("policy.depth_decisions", 200_000, "1,000,000"),
        Reduction("traces.max_new_tokens", 128, "256 tokens an answer"),
    ),
}
BENCHMARKS = {
    "resps": ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm"),
    "ltd": ("mt_bench", "gsm8k", "alpaca", "qa"),
}
DEVICES = ("a100-8b", "h100-8b")


def _train(paper: str, name: str, *more: str, policy: str = "", seeded: bool = True) -> str:
    """Train a policy by its paper's settings, with all seeds; those without PPO, which are ours, on the same traces."""
    nodes, depth, top_k = EAGLE_TREES[paper].split("/")
    ours = policy in ("marginal", "planner")
    sizes = [size for size in REDUCTIONS[paper] if not ours or size.key.startswith("traces.")]
    words = [TRAIN, *([f"policy={policy}"] if policy else []), f"experiment={EXPERIMENTS[paper]}"]
    words += [*(f"{size.key}={size.value}" for size in sizes), "traces.num_test=40"]
    words += [f"runtime.num_tokens={nodes}", f"runtime.depth={depth}", f"runtime.top_k={top_k}"]
    words += [f'"seeds={listed(*map(str, SEEDS))}"'] if seeded and policy != "marginal" else []
    return " ".join([*words, *more, f"name={name}"])


def _priced(paper: str, name: str, device: str, policy: str = "") -> str:
    return _train(paper, f"{name}-{device}", f"latency={device}", REPLAYED, policy=policy)


def _sampled(paper: str, name: str, temperature: float, policy: str = "") -> str:
    """Train on sampled answers, which are recorded for each temperature."""
    traces = f"traces.name={paper}-t{temperature:g}"
    keys = f"traces.temperature={temperature:g}", traces, DECODED
    return _train(paper, f"{name}-t{temperature:g}", *keys, policy=policy)


def with_seeds(name: str) -> list[str]:
    """A policy's name in every seed."""
    return [name, *(f"{name}-seed{seed}" for seed in SEEDS)]


def _decoded(paper: str, name: str, policies: tuple[str, ...], *further: str, temperature: float = 0.0) -> str:
    """Time policies of all seeds beside EAGLE's tree, the best static tree and the tree of this device."""
    trees = ("generalist", f"generalist/{EAGLE_TREES[paper]}", f"generalist/{TREE}")
    methods = [f"generalist/{seeded}" for policy in policies for seeded in with_seeds(policy)]
    more = f'suite.max_new_tokens=128 "suite.benchmarks={listed(*BENCHMARKS[paper])}"'
    more += f" suite.temperature={temperature:g}" if temperature else ""
    return timed(name, *trees, *methods, *further, more=more, limit=LIMITS[paper])


def _on_devices(paper: str, *policies: tuple[str, str]) -> Step:
    """Train policies in the published seconds of other devices.  policies: name and policy; empty: the paper's."""
    trained = [(name, device, policy) for device in DEVICES for name, policy in policies]
    commands = tuple(_priced(paper, *words) for words in trained)
    reports = tuple(f"policy-{name}-{device}" for name, device, _ in trained)
    return Step(f"{paper}-devices", REPLAY, 180, commands, reports, REDUCTIONS[paper], folder=paper)


REPLAYED_STEPS = (
    _on_devices("resps", ("resps", ""), ("resps-maxent", "resps-maxent")),
    _on_devices("ltd", ("ltd", ""), ("marginal", "marginal")),
)
TIMED_STEPS = (
    Step(
        "resps",
        CLOCK,
        300,
        (
            _train("resps", "resps", DECODED),
            _train("resps", "resps-drawn", "policy.temperature=1", REPLAYED),
            _train("resps", "resps-maxent", DECODED, policy="resps-maxent"),
            _train("resps", "planner", REPLAYED, policy="planner"),
            _decoded("resps", "papers-resps", ("resps", "resps-drawn", "resps-maxent", "planner")),
        ),
        ("papers-resps", "policy-resps", "policy-resps-drawn", "policy-resps-maxent", "policy-planner"),
        REDUCTIONS["resps"],
        tree_of="policy-resps",
        folder="resps",
    ),
    Step(
        "resps-ablation",
        CLOCK,
        90,
        (
            _train("resps", "resps-text", REPLAYED, policy="resps-text"),
            _train("resps", "resps-maxent-text", '"policy.parts=[text]"', REPLAYED, policy="resps-maxent"),
            _decoded("resps", "papers-resps-ablation", ("resps-text", "resps-maxent-text")),
        ),
        ("papers-resps-ablation", "policy-resps-text", "policy-resps-maxent-text"),
        REDUCTIONS["resps"],
        tree_of="policy-resps-text",
        folder="resps",
    ),
    Step(
        "resps-caching",
        CLOCK,
        90,
        (
            *(
                _train("resps", f"resps-hold{count}", f"policy.hold_cycles={count}", REPLAYED, seeded=False)
                for count in HOLD_CYCLES
            ),
            _decoded("resps", "papers-resps-caching", (), *(f"generalist/resps-hold{count}" for count in HOLD_CYCLES)),
        ),
        ("papers-resps-caching", *(f"policy-resps-hold{count}" for count in HOLD_CYCLES)),
        REDUCTIONS["resps"],
        tree_of="policy-resps-hold1",
        folder="resps",
    ),
    Step(
        "ltd",
        CLOCK,
        180,
        (_train("ltd", "ltd", DECODED), _decoded("ltd", "papers-ltd", ("ltd",))),
        ("papers-ltd", "policy-ltd"),
        REDUCTIONS["ltd"],
        tree_of="policy-ltd",
        folder="ltd",
    ),
    Step(
        "ltd-ablation",
        CLOCK,
        240,
        (
            _train("ltd", "ltd-size", "policy.decides=size", "policy.max_depth=9", DECODED),
            _train("ltd", "ltd-depth", "policy.decides=depth", DECODED),
            _train("ltd", "ltd-independent", "policy.decides=independent", DECODED),
            _decoded("ltd", "papers-ltd-ablation", ("ltd-size", "ltd-depth", "ltd-independent")),
        ),
        ("papers-ltd-ablation", "policy-ltd-size", "policy-ltd-depth", "policy-ltd-independent"),
        REDUCTIONS["ltd"],
        tree_of="policy-ltd-size",
        folder="ltd",
    ),
    Step(
        "ltd-rewards",
        CLOCK,
        120,
        (
            *(
                _train("ltd", name, "policy.decides=size", "policy.max_depth=9", f"policy.objective={reward}", REPLAYED)
                for name, reward in (("ltd-size-length", "accept_length"), ("ltd-size-time", "time"))
            ),
            _decoded("ltd", "papers-ltd-rewards", ("ltd-size-length", "ltd-size-time")),
        ),
        ("papers-ltd-rewards", "policy-ltd-size-length", "policy-ltd-size-time"),
        REDUCTIONS["ltd"],
        tree_of="policy-ltd-size-length",
        folder="ltd",
    ),
    Step(
        "ltd-sampled",
        CLOCK,
        300,
        (
            *(_sampled("ltd", "ltd", temperature) for temperature in SAMPLED),
            _decoded("ltd", "papers-ltd-sampled", ("ltd",), temperature=1.0),
        ),
        ("papers-ltd-sampled", *(f"policy-ltd-t{temperature:g}" for temperature in SAMPLED)),
        REDUCTIONS["ltd"],
        tree_of="policy-ltd",
        folder="ltd",
    ),
    Step(
        "ltd-mmlu",
        CLOCK,
        120,
        (
            "drafterforge eval suite=papers name=papers-ltd-mmlu suite.questions=MMLU limit=2 suite.timed_prompts=114 "
            "suite.replay=false suite.max_new_tokens=64 "
            f'"suite.methods={listed(*(f"generalist/{tree}" for tree in (EAGLE_TREES["ltd"], *with_seeds("ltd"))))}"',
        ),
        ("papers-ltd-mmlu",),
        REDUCTIONS["ltd"],
        folder="ltd",
    ),
    Step(
        "resps-sampled",
        CLOCK,
        480,
        tuple(
            _sampled("resps", name, temperature, policy)
            for temperature in SAMPLED
            for name, policy in (("resps", ""), ("resps-maxent", "resps-maxent"))
        ),
        tuple(f"policy-{name}-t{temperature:g}" for temperature in SAMPLED for name in ("resps", "resps-maxent")),
        REDUCTIONS["resps"],
        folder="resps",
    ),
)
