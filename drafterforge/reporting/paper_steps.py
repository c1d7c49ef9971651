"""The commands that measure the papers' tables, in the order in which `scripts/papers_reports.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.data import POOL_DOMAINS

HEDGE, BANDITS = ("hedgespec-paper", "normalhedge", "hedgespec"), ("ucbspec", "exp3spec")
METASD_BENCHMARKS = ("humaneval", "spec_bench", "cnn_dm", "qa", "gsm8k")
METASD = ("metasd_ucb", "metasd_exp3", "metasd_halving", "ucb1", "ucb1_sliding", "ucb1_discounted")
REPLAY, CLOCK = "replay", "clock"
TRAIN = "drafterforge train-policy"
TREE = "TREE"  # in a command: the best static tree of the step's report on a policy
FOLDERS = {"FOLDER": "--questions", "MMLU": "--mmlu"}  # in a command -> option of `scripts/papers_reports.py`


@dataclass(frozen=True)
class Reduction:
    """A size that is smaller than in the paper, so that two cores finish in hours."""

    key: str
    value: int
    paper: str  # the paper's size

    def __str__(self) -> str:
        return f"`{self.key}={self.value}` (the paper: {self.paper})"


@dataclass(frozen=True)
class Step:
    """Commands that make reports of the papers' tables."""

    name: str
    by: str  # replay: exact, on any machine, busy or not | clock: timed, on a machine at rest
    minutes: int  # on two cores
    commands: tuple[str, ...]
    reports: tuple[str, ...]  # names in the folder `reports`, or of a router in `policies`
    reductions: tuple[Reduction, ...] = ()
    tree_of: str = ""  # report whose best static tree stands for `TREE` in the commands
    folder: str = ""  # in the runs folder: drafters join the pool of no other step, and a grid has its latency profile


def _listed(*names: str) -> str:
    return f"[{','.join(names)}]"


def _replayed(suite: str, name: str, more: str, *selectors: str) -> str:
    off = "suite.tuning_prompts=0 suite.timed_prompts=0 suite.check_live=false"
    return f'drafterforge eval suite={suite} name={name} {more} {off} "suite.selectors={_listed(*selectors)}"'


def _timed(name: str, *methods: str, more: str = "", limit: int = 4) -> str:
    keys = f"suite.questions=FOLDER limit={limit} suite.replay=false{more and f' {more}'}"
    return f'drafterforge eval suite=papers name={name} {keys} "suite.methods={_listed(*methods)}"'


# --- Re-SpS and LTD by their papers' settings ------------------------------------------------------

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
    words += [f'"seeds={_listed(*map(str, SEEDS))}"'] if seeded and policy != "marginal" else []
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
    more = f'suite.max_new_tokens=128 "suite.benchmarks={_listed(*BENCHMARKS[paper])}"'
    more += f" suite.temperature={temperature:g}" if temperature else ""
    return _timed(name, *trees, *methods, *further, more=more, limit=LIMITS[paper])


# --- pools that are trained for a table ------------------------------------------------------------

SMALL_LM = "-causal_lm"  # end of the names of small language models
TASKS = ("python", "translation", "summarization", "science", "math")  # domains like MetaSD's tasks
BLACK_BOX = tuple(f"{domain}{SMALL_LM}" for domain in ("general", *TASKS))
VARIANTS = {"seed1": "seed=1", "seed2": "seed=2", "rank4": "drafter.lora.rank=4", "rank64": "drafter.lora.rank=64"}
MANY = tuple(f"{domain}-{variant}" for variant in VARIANTS for domain in POOL_DOMAINS)  # 32 experts
POOL_SIZES = (1, 2, 4, 8, 16, 32)
ANSWERS = (
    "drafterforge prepare-data domain=general name=papers-answers data.num_train=1600 data.num_val=64 data.num_test=16 "
    "data.max_new_tokens=128"
)
TRAINED = (
    "answers=papers-answers trainer.tokens_per_batch=2048 eval.num_prompts=1 eval.max_new_tokens=32 eval.chain=false "
    "eval.check_float32=false"
)


def _small_lm(domain: str) -> str:
    few = "trainer.max_steps=200 trainer.val_every=50"
    return f"drafterforge train-drafter domain={domain} drafter=causal_lm {TRAINED} {few}"


def _experts(variant: str) -> str:
    """Train an expert of each domain, side by side."""
    domains, names = _listed(*POOL_DOMAINS), _listed(*(f"{domain}-{variant}" for domain in POOL_DOMAINS))
    few = "experiment=pool_smollm2_expert trainer.max_steps=40 trainer.val_every=20"
    return (
        f'drafterforge train-drafter "domain={domains}" "name={names}" drafter=lora {VARIANTS[variant]} {TRAINED} {few}'
    )


def _on_devices(paper: str, *policies: tuple[str, str]) -> Step:
    """Train policies in the published seconds of other devices.  policies: name and policy; empty: the paper's."""
    trained = [(name, device, policy) for device in DEVICES for name, policy in policies]
    commands = tuple(_priced(paper, *words) for words in trained)
    reports = tuple(f"policy-{name}-{device}" for name, device, _ in trained)
    return Step(f"{paper}-devices", REPLAY, 180, commands, reports, REDUCTIONS[paper], folder=paper)


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
        "sampled",
        REPLAY,
        60,
        tuple(
            _replayed(
                "domains",
                f"papers-sampled-{temperature:g}",
                f"suite.num_prompts=160 suite.temperature={temperature:g}",
                *HEDGE,
                *BANDITS,
                "metasd_ucb",
            )
            for temperature in SAMPLED
        ),
        tuple(f"papers-sampled-{temperature:g}" for temperature in SAMPLED),
    ),
    Step(
        "black-box",
        REPLAY,
        150,
        (
            ANSWERS,
            *map(_small_lm, ("general", *TASKS)),
            _replayed(
                "papers",
                "papers-black-box",
                f'suite.questions=FOLDER "suite.benchmarks={_listed(*METASD_BENCHMARKS)}" suite.num_prompts=12 '
                f'suite.max_new_tokens=128 "pool.drafters={_listed(*BLACK_BOX)}"',
                *METASD,
            ),
        ),
        ("papers-black-box",),
        folder="black-box",
    ),
    Step(
        "many-drafters",
        REPLAY,
        180,
        (
            ANSWERS,
            *map(_experts, VARIANTS),
            _replayed(
                "domains",
                "papers-many-drafters",
                f'suite.num_prompts=64 "pool.drafters={_listed("general", *MANY)}"',
                *HEDGE,
                *BANDITS,
            ),
        ),
        ("papers-many-drafters",),
        folder="many-drafters",
    ),
    _on_devices("resps", ("resps", ""), ("resps-maxent", "resps-maxent")),
    _on_devices("ltd", ("ltd", ""), ("marginal", "marginal")),
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
        "black-box-timed",
        CLOCK,
        90,
        (
            _timed(
                "papers-black-box-timed",
                *BLACK_BOX,
                *METASD,
                more=f'suite.max_new_tokens=128 "suite.benchmarks={_listed(*METASD_BENCHMARKS)}" '
                f'"pool.drafters={_listed(*BLACK_BOX)}"',
            ),
        ),
        ("papers-black-box-timed",),
        folder="black-box",
    ),
    Step(
        "many-drafters-timed",
        CLOCK,
        40,
        (
            "drafterforge eval suite=scaling name=papers-many-drafters-timed suite.replay=false suite.temperatures=[] "
            "suite.batch_sizes=[] suite.context_lengths=[] "
            f'"suite.pool_sizes={_listed(*map(str, POOL_SIZES))}" "pool.drafters={_listed("general", *MANY)}"',
        ),
        ("papers-many-drafters-timed",),
        folder="many-drafters",
    ),
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
            f'"suite.methods={_listed(*(f"generalist/{tree}" for tree in (EAGLE_TREES["ltd"], *with_seeds("ltd"))))}"',
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
BY_NAME = {step.name: step for step in STEPS}


def commands_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The commands of several steps, each once, with their runs folders."""
    commands = []
    for step in (BY_NAME[name] for name in names):
        folder = f" runs_dir=runs/{step.folder}" if step.folder else ""
        commands += [command + folder for command in step.commands]
    return tuple(dict.fromkeys(commands))


def reductions_of(names: tuple[str, ...]) -> tuple[Reduction, ...]:
    """What is smaller than in the papers in several steps, each once."""
    return tuple(dict.fromkeys(reduction for name in names for reduction in BY_NAME[name].reductions))
