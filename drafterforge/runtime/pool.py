"""A pool: several drafters of one target, and how one of them is picked for every cycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import ConfigError
from drafterforge.router.router import Router
from drafterforge.schedulers.base import Scheduler
from drafterforge.selectors import advised
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Selector
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


class Pool:
    """Named drafters of any kinds, in an order that selectors count by."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        selector: str | Callable[[list[str], list[int]], Selector] = "hedgespec",
        *,
        every: int = 1,
        details: bool = False,
        shapes: Mapping[str, TreeShape] | None = None,
        scheduler: Scheduler | None = None,
        router: Router | None = None,
        **options: object,
    ) -> None:
        """selector: a name, with its options, or a function of (names, levels each drafts) that makes one.

        every: cycles between passes in which all drafters read what is committed; in between only those that draft do.
        details: also judge log-probabilities and total variation, which no selector asks for.  shapes: trees of single
        drafters, where they are not to be the engine's.  scheduler: chooses the trees of EAGLE-3 drafters without their
        own, cycle by cycle.  router: advises the selector at a request's start; learners then begin with rounds of it.
        """
        if not drafters:
            raise ConfigError("a pool needs at least one drafter, got none")
        if every < 1:
            raise ConfigError(f"every must be >= 1 cycles, got {every}")
        self.drafters, self.every, self.details = dict(drafters), every, details
        self.shapes, self.scheduler, self.router = dict(shapes or {}), scheduler, router
        if unknown := sorted(self.shapes.keys() - self.drafters.keys()):
            raise ConfigError(f"shapes names {', '.join(unknown)}; the pool has {', '.join(self.drafters)}")
        if unknown := sorted(options.keys() & {"levels", "depth"}):
            raise ConfigError(f"{', '.join(unknown)} of a selector is what the pool's trees say; leave it out")
        for name, drafter in self.drafters.items():
            kind_of(drafter, name)
        self.choose = selector
        self.options = advised(selector, options) if router is not None and isinstance(selector, str) else options
        self.idle: list[Selector] = []  # of finished requests; they may carry what they learned
        self.stacks: dict[tuple[str, ...], Any] = {}  # weights side by side, by the drafters' names

    @property
    def names(self) -> list[str]:
        """In the order that selectors count by."""
        return list(self.drafters)

    def shape_of(self, name: str, shape: TreeShape) -> TreeShape:
        """The drafter's own trees, or the engine's."""
        return self.shapes.get(name, shape)

    def scheduled(self, name: str) -> bool:
        """Whether the scheduler chooses this drafter's trees."""
        return self.scheduler is not None and name not in self.shapes and kind_of(self.drafters[name]).scheduled

    def levels(self, shape: TreeShape) -> list[int]:
        """Levels that each drafter drafts at most."""
        return [
            self.scheduler.depth if self.scheduled(name) else self.shape_of(name, shape).depth for name in self.drafters
        ]

    def selector(self, shape: TreeShape) -> Selector:
        """One that is not in use."""
        levels = self.levels(shape)
        while self.idle:
            found = self.idle.pop()
            if list(found.drafters) == self.names and found.levels.tolist() == levels:
                return found
        return self._made(self.names, levels, self.options)

    def _made(self, names: Sequence[str], levels: Sequence[int], options: Mapping[str, object]) -> Selector:
        if callable(self.choose):
            return self.choose(list(names), list(levels))
        return build_selector(self.choose, names, max(1, *levels), levels=levels, **options)

    def add(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """A drafter joins, last in the order; cost: seconds of its cycles, where the selector was given costs."""
        self.options = self.options_with(name, cost)
        self.drafters[name] = drafter

    def options_with(self, name: str, cost: float | None) -> dict[str, object]:
        """The selector's options once a drafter has joined; ConfigError if requests could not be served then."""
        if name in self.drafters:
            raise ConfigError(f"the pool already has a drafter {name!r}; it has {', '.join(self.drafters)}")
        options = dict(self.options)
        if (costs := options.get("costs")) is not None:
            if cost is None:
                raise ConfigError(f"the selector was given costs; add {name!r} with cost=SECONDS of its cycles")
            options["costs"] = [*costs, cost]
        self._try([*self.names, name], options)
        return options

    def remove(self, name: str) -> None:
        """A drafter leaves."""
        self.options = self.options_without(name)
        del self.drafters[name]
        self.shapes.pop(name, None)
        self.stacks = {names: stack for names, stack in self.stacks.items() if name not in names}

    def options_without(self, name: str) -> dict[str, object]:
        """The selector's options once a drafter has left; ConfigError if requests could not be served then."""
        if name not in self.drafters:
            raise ConfigError(f"the pool has no drafter {name!r}; it has {', '.join(self.drafters)}")
        if len(self.drafters) == 1:
            raise ConfigError(f"{name!r} is the only drafter of the pool and cannot be removed")
        options = dict(self.options)
        if (costs := options.get("costs")) is not None:
            options["costs"] = [cost for cost, kept in zip(costs, self.names, strict=True) if kept != name]
        left = [kept for kept in self.names if kept != name]
        try:
            self._try(left, options)
        except ConfigError as error:
            raise ConfigError(
                f"the pool's selector or router needs {name!r}, which cannot be removed: {error}"
            ) from None
        return options

    def _try(self, names: Sequence[str], options: Mapping[str, object]) -> None:
        """Refuse names that the selector or the router cannot serve."""
        if not callable(self.choose):
            self._made(names, [1] * len(names), options)
        if self.router is not None:
            self.router.law_for(names)

    def check(self, target: Target) -> None:
        """Refuse drafters of another target or vocabulary, and a router that knows none of them."""
        if self.router is not None:
            self.router.law_for(self.names)
            if self.router.kind == "text" and target.tokenizer is None:
                raise ConfigError(f"a router of texts needs a tokenizer, and {target.name} has none")
        for name, drafter in self.drafters.items():
            check_drafter(name, drafter, target)

    def groups(self) -> list[tuple[list[str], DrafterGroup]]:
        """Drafters that read in one pass, with their names, at work with no rows yet."""
        return [(names, self._group(names)) for names in self.stacked_names()]

    def stacked_names(self) -> list[list[str]]:
        """Names of drafters that read in one pass, in the order in which they stack."""
        alike: dict[tuple, list[str]] = {}
        for name, drafter in self.drafters.items():
            reader = kind_of(drafter).reader(drafter)
            key = kind_of(reader).stack_key(reader)
            alike.setdefault((reader.kind, name if key is None else key, key is None), []).append(name)
        found = []
        for names in alike.values():
            readers = [self._reader(name) for name in names]
            found.append([names[place] for place in kind_of(readers[0]).stack_order(readers)])
        return found

    def _reader(self, name: str) -> Drafter:
        drafter = self.drafters[name]
        return kind_of(drafter).reader(drafter)

    def _group(self, names: Sequence[str]) -> DrafterGroup:
        key, readers = tuple(names), [self._reader(name) for name in names]
        kind = kind_of(readers[0])
        if key not in self.stacks:
            self.stacks[key] = kind.stack(readers)
        return kind.group(self.stacks[key])


def group_alone(drafter: Drafter) -> DrafterGroup:
    """A drafter at work in a pool by itself, with no rows yet."""
    reader = kind_of(drafter).reader(drafter)
    return kind_of(reader).group(kind_of(reader).stack([reader]))


def check_drafter(name: str, drafter: Drafter, target: Target) -> None:
    """Refuse what is no drafter, or one of another target or vocabulary."""
    kind_of(drafter, name).check(name, drafter, target)
