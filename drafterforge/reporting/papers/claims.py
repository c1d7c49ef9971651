"""The papers' claims, as comparisons of two methods in our tables, or of a method with a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from drafterforge.reporting.papers.form import FIGURES
from drafterforge.reporting.report_table import format_number

HOLDS, DEPENDS, FAILS, UNMEASURED = "holds", "depends", "does not hold", "not measured"
CLOSE = "too close to tell"  # below the deviation over training seeds, or inside the interval


@dataclass(frozen=True)
class Claim:
    """A method's figure is at least `least` times that of another method or a number, or at most, in every column."""

    paper: str  # key in `published.json`
    text: str
    form: str  # key of the table
    figure: str
    method: str
    over: str | float  # the other method, or a number; the same method: its last column is compared with its first
    least: float | None = 1.0
    most: float | None = None
    left_out: str = ""  # columns whose names start with this do not count; empty: all count
    only: str = ""  # the column that counts; empty: all
    by_mean: bool = False  # whether the means over the columns are compared, because each column has too few prompts

    def holds(self, value: float, reference: float) -> bool:
        low = -inf if self.least is None else self.least * reference
        return low <= value <= (inf if self.most is None else self.most * reference)


def judge(
    claim: Claim,
    values: Mapping[str, float],
    references: Mapping[str, float],
    deviations: Mapping[str, float] | None = None,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> tuple[str, str]:
    """What we measured, and the verdict.

    values, references: by column; deviations: by column, the larger one of both methods over training seeds;
    intervals: by column, of 95 %.
    """
    if claim.left_out:
        values = {name: value for name, value in values.items() if not name.startswith(claim.left_out)}
    if claim.only:
        values = {name: value for name, value in values.items() if name == claim.only}
    if not isinstance(claim.over, str):
        pairs = {name: (value, claim.over) for name, value in values.items()}
    elif claim.method == claim.over:
        columns = list(values)
        pairs = {columns[-1]: (values[columns[-1]], values[columns[0]])} if len(columns) > 1 else {}
    else:
        pairs = {name: (value, references[name]) for name, value in values.items() if name in references}
    if not pairs:
        return "", UNMEASURED
    means = tuple(sum(numbers) / len(pairs) for numbers in zip(*pairs.values(), strict=True))
    measured = _printed(means, claim.figure)
    if claim.by_mean:
        return f"{measured}, mean of {len(pairs)} columns", HOLDS if claim.holds(*means) else FAILS
    true = sum(claim.holds(*pair) for pair in pairs.values())
    if len(pairs) > 1:
        measured += f", in {true} of {len(pairs)} columns"
    bounds, spans = deviations or {}, intervals or {}
    close = [
        spans[name][0] <= reference <= spans[name][1] if name in spans else abs(value - reference) < bounds.get(name, 0)
        for name, (value, reference) in pairs.items()
    ]
    if all(close):
        return measured, CLOSE
    return measured, HOLDS if true == len(pairs) else DEPENDS if true else FAILS


def _printed(means: Sequence[float], figure: str) -> str:
    """Both means with the name of the figure, unless its unit tells it."""
    heading, form, unit = FIGURES[figure]
    value, reference = (format_number(mean, form, unit) for mean in means)
    if heading.startswith("%"):
        return f"{value} against {reference} {heading}"
    return f"{value} against {reference}" if unit else f"{heading} {value} against {reference}"


HEDGE, OURS = "HedgeSpec, as in its theorem", "HedgeSpec (ours)"
EAGLE, RESPS, LTD = "EAGLE-3 (generalist)", "Re-SpS: standard PPO", "LTD"
OFA, BEST_ALONE = "one for all (generalist)", "best drafter alone"
DEFAULT, META = "EAGLE-3 (default tree)", "MetaSD-UCB"
RESPS_BEST, LTD_BEST = "best static tree of Re-SpS", "best static tree of LTD"
LIVE = "T = 0, live"  # column of the table over the best static tree
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
    Claim(
        "hedgespec",
        "On natural prompts, HedgeSpec emits more tokens a cycle than the generalist",
        "hedgespec_natural",
        "mat",
        HEDGE,
        EAGLE,
    ),
    Claim(
        "hedgespec",
        "On natural prompts, HedgeSpec emits more tokens a cycle than UCBSpec",
        "hedgespec_natural",
        "mat",
        HEDGE,
        "UCBSpec",
    ),
    Claim(
        "hedgespec",
        "HedgeSpec is faster than the generalist",
        "hedgespec",
        "tokens_per_s",
        HEDGE,
        EAGLE,
        by_mean=True,
    ),
    Claim(
        "hedgespec",
        "HedgeSpec is faster than UCBSpec",
        "hedgespec",
        "tokens_per_s",
        HEDGE,
        "UCBSpec",
        by_mean=True,
    ),
    Claim("hedgespec", "More drafters do not harm HedgeSpec", "scaling", "mat", HEDGE, HEDGE),
    Claim("hedgespec", "Up to 32 drafters do not harm HedgeSpec", "many_drafters", "mat", HEDGE, HEDGE),
    Claim(
        "hedgespec", "Up to 32 drafters do not slow ours (our question)", "many_drafters", "tokens_per_s", OURS, OURS
    ),
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
    Claim(
        "hedgespec",
        "An offline router sends most rephrased prompts to a wrong drafter",
        "router",
        "accuracy",
        "offline router",
        50.0,
        least=None,
        most=1.0,
        left_out="as written",
    ),
    Claim(
        "hedgespec",
        "HedgeSpec beats a router on rephrased prompts (here by the datastore, which no router chooses)",
        "ood",
        "mat",
        HEDGE,
        "offline router",
    ),
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
    Claim(
        "banditspec",
        "UCBSpec beats the best drafter alone (the paper's: EAGLE)",
        "banditspec",
        "mat",
        "UCBSpec",
        BEST_ALONE,
    ),
    Claim("banditspec", "UCBSpec beats EAGLE", "banditspec", "mat", "UCBSpec", EAGLE),
    Claim("banditspec", "UCBSpec is faster than EAGLE", "banditspec", "tokens_per_s", "UCBSpec", EAGLE),
    Claim("banditspec", "UCBSpec beats EXP3Spec", "banditspec", "mat", "UCBSpec", "EXP3Spec"),
    Claim("resps", "Re-SpS is faster than the default tree", "resps", "speedup", RESPS, DEFAULT),
    Claim(
        "resps",
        "Re-SpS is faster than the best static tree (our question)",
        "over_best",
        "over_best",
        RESPS,
        1.0,
        only=LIVE,
    ),
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
    Claim("ltd", "LTD is faster than the best static tree", "over_best", "over_best", LTD, 1.0, only=LIVE),
    Claim(
        "ltd",
        "LTD's policies take less than 1.5 % of the time",
        "ltd_overhead",
        "schedule_of_total",
        LTD,
        1.5,
        least=None,
        most=1.0,
    ),
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
