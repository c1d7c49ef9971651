"""Forms of the tables of Re-SpS and LTD, and of our questions about them."""

from __future__ import annotations

from dataclasses import replace

from drafterforge.reporting.papers.form import GENERALIST_ALONE, Form, Line, columns_of
from drafterforge.reporting.papers.points import FORESIGHT
from drafterforge.reporting.papers.policy_steps import EAGLE_TREES, HOLD_CYCLES
from drafterforge.reporting.papers.rows import BEST_STATIC, best_static_of

TEMPERATURES, SOURCES = (0.0, 0.5, 1.0), ("replayed", "live")
DEVICE_TREE = Line("EAGLE-3 (our tree for this device)", drafter=GENERALIST_ALONE)
EAGLE_TREE = {
    paper: Line("EAGLE-3 (default tree)", drafter=GENERALIST_ALONE, schedule=tree)
    for paper, tree in EAGLE_TREES.items()
}
BEST_TREE = {
    paper: Line("EAGLE-3 (best static tree)", drafter=GENERALIST_ALONE, schedule=best_static_of(paper))
    for paper in EAGLE_TREES
}
RESPS_COLUMNS = {
    "MT-bench": ("mt_bench",),
    "HumanEval": ("humaneval",),
    "GSM8K": ("gsm8k",),
    "Alpaca": ("alpaca",),
    "CNN/DM": ("cnn_dm",),
}
LTD_COLUMNS = {"MT-bench": ("mt_bench",), "GSM8K": ("gsm8k",), "Alpaca": ("alpaca",), "QA": ("qa",)}
INTERVALS = {f"N = {count}": (str(count),) for count in HOLD_CYCLES}


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
    "training answers. Policies are trained by replay, on {}, not on the wall clock. Figures with a standard deviation "
    "are means over three training seeds; other policies were trained once. [What else differs from the paper]"
    "(schedulers.md#by-the-papers-own-settings)."
)
POLICY_FORMS = (
    Form(
        "resps",
        "Re-SpS: trees chosen by a policy, by benchmark",
        "Speed-up over autoregressive decoding; one drafter, the generalist. The standard policy takes its best "
        "action, as the authors' code does; the paper's Table 4 draws actions at temperature 1: the row after it. "
        "The paper's trees have 32 nodes or more. On this CPU, where every node takes time, all of them are slower "
        "than plain decoding, the best static one too; smaller trees are faster, such as ours for this device. "
        f"{TREES.format(EAGLE_TREES['resps'], POOL_ANSWERS)}",
        RESPS_COLUMNS,
        ("speedup", "mat"),
        (
            EAGLE_TREE["resps"],
            BEST_TREE["resps"],
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
        "paper's text is encoded by SBERT, ours is the mean embedding of the last 64 tokens. Policies that see "
        "features have three training seeds, those that see text one. The default tree is slower than plain "
        "decoding here: above 1 means less slow.",
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
        "MAT. Its Tables 5, 7 and 8 are not in our source.",
        RESPS_COLUMNS,
        ("accept_rate", "mat"),
        (EAGLE_TREE["resps"], RESPS),
        ("resps",),
        live=True,
    ),
    Form(
        "resps_overhead",
        "Re-SpS: overhead",
        "Shares of all time that is neither prefill nor verification. The rest is the building of trees in the "
        "paper; ours, where trees are built while they are drafted, is acceptance and bookkeeping. What is missing "
        "to 100 % is the selector.",
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
        "Tokens/s over those of EAGLE's default tree, which is slower than plain decoding here, mean of five "
        "benchmarks, of one training seed: differences of a few percent may be chance.",
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
        (EAGLE_TREE["ltd"], BEST_TREE["ltd"], LTD, DEVICE_TREE),
        ("ltd",),
        live=True,
    ),
    Form(
        "ltd_sampled",
        "LTD: at temperature 1",
        "As the table above, sampled, with the same policies and the same static tree, which are of greedy answers. "
        "[Policies of sampled answers](#re-sps-and-ltd-over-the-best-static-tree-our-question) have a table of "
        "their own.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (EAGLE_TREE["ltd"], replace(BEST_TREE["ltd"], name="EAGLE-3 (best static tree of greedy answers)"), LTD),
        ("ltd-sampled",),
        live=True,
        reduced_in=("ltd",),
        temperature=1.0,
    ),
    Form(
        "ltd_ablation",
        "LTD: its parts",
        "One of the two policies, both trained separately, both trained in turn; the last with three training seeds, "
        "the others with one, all with the same budget a training.",
        LTD_COLUMNS,
        ("speedup", "mat"),
        (EAGLE_TREE["ltd"], *LTD_PARTS, LTD),
        ("ltd", "ltd-ablation"),
        live=True,
    ),
    Form(
        "ltd_rewards",
        "LTD: reward of the size policy",
        "The size policy alone, with three rewards and one training seed.",
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
        "Of all time of decoding. The paper states less than 1.5 %.",
        LTD_COLUMNS,
        ("schedule_of_total",),
        (LTD,),
        ("ltd",),
        live=True,
    ),
    Form(
        "ltd_mmlu",
        "LTD: tasks of MMLU",
        "Of 57 tasks, each in a question file that `scripts/mmlu_questions.py` writes: those on which the policy, mean "
        "of three training seeds, emits more tokens/s than EAGLE's default tree on two questions.",
        columns_of("MMLU"),
        ("faster_tasks",),
        (LTD,),
        ("ltd-mmlu",),
        live=True,
    ),
    Form(
        "over_best",
        "Re-SpS and LTD: over the best static tree (our question)",
        "Tokens/s over the best static tree of the policy's own grid, on held-out prompts of the pool's domains, on "
        "a CPU: replayed, and live with a 95 % interval over training seeds and prompts. Below 1, one tree is "
        "faster than the policy. Re-SpS, max-entropy PPO and LTD have three training seeds at T = 0; all others were "
        "trained once. At T = 0.5 and 1 policies are trained on sampled answers, too; the Re-SpS paper decodes "
        "greedily only. LTD's depth policy may end after one level of ten nodes, a tree that the paper's grid of 20 "
        "nodes and more lacks: where it always does so, LTD is one tree beside a grid without it, and its figure "
        "shows that the tree fits this device, not that choosing pays.",
        columns_of(*(f"T = {temperature:g}, {source}" for temperature in TEMPERATURES for source in SOURCES)),
        ("over_best",),
        (RESPS, RESPS_MAXENT, LTD, *LTD_PARTS),
        ("resps", "ltd", "ltd-ablation", "resps-sampled", "ltd-sampled"),
        live=True,
    ),
    Form(
        "priced",
        "Re-SpS and LTD: trees priced by other devices",
        "Recorded answers of this target, replayed in the seconds of the device in the heading: in the GPU "
        "columns, trees are judged on devices like the papers'; the CPU columns are our machines. The GPUs' seconds "
        "are derived from published rates and data sheets: on the A100, verification takes as long for 256 nodes as "
        "for one, which favours large trees; `configs/latency/*.json` has each number with its source. Policies are "
        "trained on the same seconds, and the time of their networks is left out. Figures of policies are means over "
        "three training seeds, with the standard deviation. Marginal, ours, chooses among trees of 2 to 128 nodes of "
        "LTD's width and levels, most of them smaller than any of LTD's, so that it may exceed the perfect foresight "
        "with LTD's trees. Perfect foresight plays the fastest tree of the grid in every cycle, which only a replay "
        "knows. The reference, no drafting, includes the drafter's reading of the text, 3 to 5 % of its time on these "
        "GPUs.",
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
