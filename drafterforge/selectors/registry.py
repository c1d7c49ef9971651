"""All selectors by name; a new selector is one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drafterforge.errors import ConfigError
from drafterforge.selectors.bandit import Bandit
from drafterforge.selectors.base import Selector
from drafterforge.selectors.exp3 import Exp3
from drafterforge.selectors.fixed import Oracle, Random, Routed, Static
from drafterforge.selectors.full_information import FullInformation
from drafterforge.selectors.hedgespec_paper import HedgeSpecPaper
from drafterforge.selectors.learners import LEARNERS, Learner
from drafterforge.selectors.metasd import MetaSDUCB, SequentialHalving
from drafterforge.selectors.naming import require_name
from drafterforge.selectors.thompson import Thompson
from drafterforge.selectors.ucb import UCB1, UCBSpec

SHARED = ("seed", "carry", "costs", "levels")  # options of every selector
ADVISED_PRIOR = 4  # rounds of a router's advice, unless the option `prior` is given
_SELECTORS: dict[str, tuple[type[Selector], dict[str, Any]]] = {}


def register(name: str, kind: type[Selector], **preset: Any) -> None:
    """Register `kind` under `name`, with default options."""
    _SELECTORS[name] = kind, preset


register("static", Static)
register("random", Random)
register("router", Routed)
register("oracle", Oracle)
register("hedgespec", FullInformation, learner="mixture", hybrid=True)
register("hedgespec-prompt", FullInformation, learner="mixture", hybrid=True, prompt_rounds=16)
register("hedgespec-paper", HedgeSpecPaper)
register("normalhedge", FullInformation, learner="normalhedge")
register("normalhedge_discounted", FullInformation, learner="normalhedge", hybrid=True, discount=0.7)
register("hedge", FullInformation, learner="hedge")
register("adanormalhedge", FullInformation, learner="adanormalhedge")
register("squint", FullInformation, learner="squint")
register("ftl", FullInformation, learner="ftl")
register("mixture", FullInformation, learner="mixture")
register("ucb1", UCB1)
register("ucb1_sliding", UCB1, windowing="rounds", window=50)
register("ucb1_discounted", UCB1, discount=0.98)
register("ucbspec", UCBSpec)
register("thompson", Thompson)
register("thompson_sliding", Thompson, window=50)
register("exp3spec", Exp3)
register("metasd_ucb", MetaSDUCB)
register("metasd_exp3", Exp3, reward="divergence")
register("metasd_halving", SequentialHalving)


def names() -> list[str]:
    """Names of all selectors."""
    return list(_SELECTORS)


def kind_of(name: str) -> tuple[type[Selector], dict[str, Any]]:
    """The class of a name, and the name's default options."""
    return _SELECTORS[require_name(name, _SELECTORS, "selector")]


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse an unknown name or option, without loading anything."""
    kind, preset = kind_of(name)
    allowed = [*kind.option_names(**preset), *SHARED]
    for option in options:
        require_name(option, allowed, f"option of {name}")


def takes_advice(name: str) -> bool:
    """Whether the selector uses a router's advice."""
    kind, preset = kind_of(name)
    return issubclass(kind, Routed) or "prior" in kind.option_names(**preset)


def reads_branches(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the selector is rewarded by the target's distributions along drafted branches with these options."""
    if not issubclass(kind_of(name)[0], Bandit):
        return False
    needs = selector(name, ["one"], 1, **{key: value for key, value in options.items() if key not in SHARED}).needs
    return needs.coverage or needs.overlap


def advised(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a selector with a router; ConfigError if it takes no advice."""
    if not takes_advice(name):
        raise ConfigError(
            f"pool.selector={name} takes no advice, so pool.router would have no effect; "
            "type pool.selector=router or pool.selector=hedgespec, or leave pool.router out"
        )
    return dict(options) if issubclass(kind_of(name)[0], Routed) else {"prior": ADVISED_PRIOR} | dict(options)


def selector(
    name: str,
    drafters: Sequence[str],
    depth: int,
    *,
    seed: int = 0,
    carry: bool = False,
    costs: Sequence[float] | None = None,
    levels: Sequence[int] | None = None,
    **options: Any,
) -> Selector:
    """A selector over named drafters, whose cycles draft at most `depth` levels.

    seed: of its draws.  carry: keep state between requests.  costs: seconds per cycle of each drafter; given, tokens
    per second are maximised.  levels: that each drafter drafts, if some draft fewer than `depth`.
    """
    check_options(name, options)
    kind, preset = kind_of(name)
    try:
        instance = kind(drafters, depth, seed=seed, carry=carry, costs=costs, levels=levels, **(preset | options))
    except TypeError as error:
        raise ConfigError(f"selector {name}: {error}") from error
    instance.name, instance.options = name, preset | options
    return instance


def learner(name: str, num_drafters: int, **options: Any) -> Learner:
    """A learner without a selector: `update(losses)` and `probs`."""
    kind = LEARNERS[require_name(name, LEARNERS, "learner")]
    for option in options:
        require_name(option, kind.option_names(), f"option of {name}")
    return kind(num_drafters, **options)
