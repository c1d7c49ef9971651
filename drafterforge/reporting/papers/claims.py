"""The papers' claims, as comparisons of two methods in our tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from drafterforge.reporting.papers.form import FIGURES
from drafterforge.reporting.report_table import format_number

HOLDS, DEPENDS, FAILS, UNMEASURED = "holds", "depends", "does not hold", "not measured"
CLOSE = "too close to tell"  # below the deviation over training seeds


@dataclass(frozen=True)
class Claim:
    """A method's figure is at least `least` times that of another method, or at most, in every column of a table."""

    paper: str  # key in `published.json`
    text: str
    form: str  # key of the table
    figure: str
    method: str
    over: str  # the other method; the same one: its last column is compared with its first
    least: float | None = 1.0
    most: float | None = None
    left_out: str = ""  # columns whose names start with this do not count; empty: all count

    def holds(self, value: float, reference: float) -> bool:
        low = -inf if self.least is None else self.least * reference
        return low <= value <= (inf if self.most is None else self.most * reference)


def judge(
    claim: Claim,
    values: Mapping[str, float],
    references: Mapping[str, float],
    deviations: Mapping[str, float] | None = None,
) -> tuple[str, str]:
    """What we measured, and the verdict.

    values, references: by column; deviations: by column, the larger one of both methods over training seeds.
    """
    if claim.left_out:
        values = {name: value for name, value in values.items() if not name.startswith(claim.left_out)}
    if claim.method == claim.over:
        columns = list(values)
        pairs = {columns[-1]: (values[columns[-1]], values[columns[0]])} if len(columns) > 1 else {}
    else:
        pairs = {name: (value, references[name]) for name, value in values.items() if name in references}
    if not pairs:
        return "", UNMEASURED
    true = sum(claim.holds(*pair) for pair in pairs.values())
    means = [sum(numbers) / len(pairs) for numbers in zip(*pairs.values(), strict=True)]
    _, form, unit = FIGURES[claim.figure]
    printed = [format_number(mean, form, unit) for mean in means]
    measured = f"{printed[0]} against {printed[1]}"
    if len(pairs) > 1:
        measured += f", in {true} of {len(pairs)} columns"
    bounds = deviations or {}
    if all(abs(value - reference) < bounds.get(name, 0) for name, (value, reference) in pairs.items()):
        return measured, CLOSE
    return measured, HOLDS if true == len(pairs) else DEPENDS if true else FAILS


HEDGE, EAGLE, RESPS, LTD = "HedgeSpec (paper)", "EAGLE-3 (generalist)", "Re-SpS: standard PPO", "LTD"
OFA, BEST_ALONE = "one for all (generalist)", "best drafter alone"
DEFAULT, BEST, META = "EAGLE-3 (default tree)", "EAGLE-3 (best static tree)", "MetaSD-UCB"
RESPS_BEST, LTD_BEST = "best static tree of Re-SpS", "best static tree of LTD"
CPU = "cpu"  # start of the names of columns in a CPU's seconds
CLAIMS = (
    Claim(
        "hedgespec",
        "An expert beats the generalist in its own domain",
        "hedgespec",
        "mat",
        "the domain's expert",
        EAGLE,
    ),
    Claim("hedgespec", "HedgeSpec emits more tokens a cycle than the generalist", "hedgespec", "mat", HEDGE, EAGLE),
    Claim("hedgespec", "HedgeSpec emits more tokens a cycle than UCBSpec", "hedgespec", "mat", HEDGE, "UCBSpec"),
    Claim("hedgespec", "HedgeSpec emits more tokens a cycle than EXP3Spec", "hedgespec", "mat", HEDGE, "EXP3Spec"),
    Claim("hedgespec", "HedgeSpec is faster than the generalist", "hedgespec", "tokens_per_s", HEDGE, EAGLE),
    Claim("hedgespec", "HedgeSpec is faster than UCBSpec", "hedgespec", "tokens_per_s", HEDGE, "UCBSpec"),
    Claim("hedgespec", "More drafters do not harm HedgeSpec", "scaling", "mat", HEDGE, HEDGE),
    Claim("hedgespec", "Up to 32 drafters do not harm HedgeSpec", "many_drafters", "mat", HEDGE, HEDGE),
    Claim("hedgespec", "More drafters harm UCBSpec", "scaling", "mat", "UCBSpec", "UCBSpec", least=None, most=1.0),
    Claim(
        "hedgespec",
        "HedgeSpec has less regret than UCBSpec",
        "regret",
        "regret_cycles",
        HEDGE,
        "UCBSpec",
        least=None,
        most=1.0,
    ),
    Claim("hedgespec", "HedgeSpec beats a router on rephrased prompts", "ood", "mat", HEDGE, "offline router"),
    Claim("hedgespec", "HedgeSpec beats UCBSpec on rephrased prompts (our question)", "ood", "mat", HEDGE, "UCBSpec"),
    Claim("metasd", "MetaSD-UCB beats the drafter for all tasks", "metasd", "mat", META, OFA),
    Claim(
        "metasd",
        "MetaSD-UCB is faster than the drafter for all tasks",
        "metasd",
        "speedup",
        META,
        "one for all (generalist)",
    ),
    Claim(
        "metasd",
        "With small language models too, MetaSD-UCB beats the drafter for all tasks",
        "metasd_black_box",
        "mat",
        META,
        OFA,
    ),
    Claim("metasd", "MetaSD-UCB comes within 10 % of the best drafter", "metasd", "mat", META, BEST_ALONE, 0.9),
    Claim(
        "metasd",
        "BD tells drafters apart better than BE",
        "metasd_signal",
        "signal",
        "BD: 1 - TV",
        "BE: block efficiency",
    ),
    Claim("metasd", "MetaSD-UCB beats MetaSD-EXP3", "metasd", "mat", META, "MetaSD-EXP3"),
    Claim("metasd", "MetaSD-UCB beats successive halving", "metasd", "mat", META, "MetaSD-SH (halving)"),
    Claim("banditspec", "UCBSpec beats the best drafter alone, EAGLE", "banditspec", "mat", "UCBSpec", EAGLE),
    Claim("banditspec", "UCBSpec is faster than EAGLE", "banditspec", "tokens_per_s", "UCBSpec", EAGLE),
    Claim("banditspec", "UCBSpec beats EXP3Spec", "banditspec", "mat", "UCBSpec", "EXP3Spec"),
    Claim("resps", "Re-SpS is faster than the default tree", "resps", "speedup", RESPS, DEFAULT),
    Claim("resps", "Re-SpS is faster than the best static tree (our question)", "resps", "speedup", RESPS, BEST),
    Claim(
        "resps",
        "The target's features are a better state than text",
        "resps_ablation",
        "over_static",
        "standard PPO, features",
        "standard PPO, text",
    ),
    Claim(
        "resps",
        "Max-entropy PPO uses more trees",
        "resps_ablation",
        "actions",
        "max-entropy PPO, features",
        "standard PPO, features",
    ),
    Claim(
        "resps",
        "On a GPU's seconds, Re-SpS is faster than the default tree",
        "priced",
        "priced",
        RESPS,
        DEFAULT,
        left_out=CPU,
    ),
    Claim(
        "resps",
        "On a GPU's seconds, Re-SpS is faster than the best static tree (our question)",
        "priced",
        "priced",
        RESPS,
        RESPS_BEST,
        left_out=CPU,
    ),
    Claim("ltd", "LTD is faster than the default tree", "ltd", "speedup", LTD, DEFAULT),
    Claim("ltd", "LTD is faster than the best static tree", "ltd", "speedup", LTD, BEST),
    Claim("ltd", "At temperature 1, LTD is faster than the default tree", "ltd_sampled", "speedup", LTD, DEFAULT),
    Claim(
        "ltd",
        "On a GPU's seconds, LTD is faster than the best static tree",
        "priced",
        "priced",
        LTD,
        LTD_BEST,
        left_out=CPU,
    ),
    Claim(
        "ltd",
        "Policies trained in turn are faster than policies trained separately",
        "ltd_ablation",
        "speedup",
        LTD,
        "both, each trained alone",
    ),
    Claim(
        "ltd",
        "The depth policy alone is faster than the size policy alone",
        "ltd_ablation",
        "speedup",
        "depth policy alone",
        "size policy alone",
    ),
    Claim(
        "ltd",
        "Throughput is a better reward than accept length",
        "ltd_rewards",
        "speedup",
        "throughput",
        "accept length",
    ),
)
