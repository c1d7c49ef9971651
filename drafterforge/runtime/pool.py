"""A pool: several drafters of one target, and how one of them is selected for every cycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import ConfigError
from drafterforge.router.router import Router
from drafterforge.router.traffic import TrafficRouter
from drafterforge.runtime.worth import Worth
from drafterforge.schedulers.base import Scheduler
from drafterforge.selectors import advised
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Needs, Selector
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


class Pool:
    """Named drafters of any kinds, in the order in which selectors number them."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        selector: str | Callable[[list[str], list[int]], Selector] = "hedgespec",
        *,
        shapes: Mapping[str, TreeShape] | None = None,
        scheduler: Scheduler | None = None,
        router: Router | TrafficRouter | None = None,
        worth: Worth | None = None,
        **options: object,
    ) -> None:
        """selector: a name, with its options, or a function (names, levels of each drafter) -> selector.

        shapes: trees of
        drafters that do not draft the engine's.  scheduler: chooses the trees of EAGLE-3 drafters without a shape of
        their own, cycle by cycle.  router: advises the selector when a request starts; learners then begin with rounds
        of its advice.  worth: decides instead of the selector, see `AutoProposer`.
        """
        if not drafters:
            raise ConfigError("a pool needs at least one drafter, got none")
        self.drafters = dict(drafters)
        self.shapes, self.scheduler, self.router, self.worth = dict(shapes or {}), scheduler, router, worth
        if unknown := sorted(self.shapes.keys() - self.drafters.keys()):
            raise ConfigError(f"shapes names {', '.join(unknown)}; the pool has {', '.join(self.drafters)}")
        if unknown := sorted(options.keys() & {"levels", "depth"}):
            raise ConfigError(f"{', '.join(unknown)} of a selector follows from the pool's trees; leave it out")
        for name, drafter in self.drafters.items():
            kind_of(drafter, name)
        self.choose = selector
        advice = router is not None and worth is None and isinstance(selector, str)
        self.options = advised(selector, options) if advice else options
        self.idle: list[Selector] = []  # of finished requests; they may carry over what they learned
        self._needs: tuple[list[str], Needs] | None = None  # of the selector of these drafters
        self.host_embedding: Tensor | None = None  # the target's, for schedulers that read texts beside a GPU
        self.kinds: dict[str, str] = {}  # drafter -> kind of the requests for which the router advises it
        self.stacks: dict[tuple[str, ...], Any] = {}  # names of drafters -> their stacked weights

    @property
    def names(self) -> list[str]:
        """Names of the drafters, in the order in which selectors number them."""
        return list(self.drafters)

    def shape_of(self, name: str, shape: TreeShape) -> TreeShape:
        """The drafter's own trees, else the engine's."""
        return self.shapes.get(name, shape)

    def scheduled(self, name: str, drafter: Drafter | None = None) -> bool:
        """Whether the scheduler chooses this drafter's trees.  drafter: if it is not in the pool yet."""
        drafter = self.drafters[name] if drafter is None else drafter
        return self.scheduler is not None and name not in self.shapes and kind_of(drafter).scheduled

    def levels(self, shape: TreeShape) -> list[int]:
        """Levels that each drafter drafts at most."""
        return [self.levels_of(name, drafter, shape) for name, drafter in self.drafters.items()]

    def levels_of(self, name: str, drafter: Drafter, shape: TreeShape) -> int:
        """Levels that a drafter, which need not be in the pool yet, drafts at most."""
        return self.scheduler.depth if self.scheduled(name, drafter) else self.shape_of(name, shape).depth

    @property
    def needs(self) -> Needs:
        """What the selector needs for the first cycle of a request."""
        if self._needs is None or self._needs[0] != self.names:
            self._needs = self.names, self._new_selector(self.names, [1] * len(self.drafters), self.options).needs
        return self._needs[1]

    def selector(self, shape: TreeShape) -> Selector:
        """An idle selector that fits the pool, else a new one."""
        levels = self.levels(shape)
        while self.idle:
            selector = self.idle.pop()
            if list(selector.drafters) == self.names and selector.levels.tolist() == levels:
                return selector
        return self._new_selector(self.names, levels, self.options)

    def _change_idle(self, change: Callable[[Selector], None]) -> None:
        """Change the idle selectors as the pool changes, so that they carry on; those that refuse are dropped."""
        for selector in [*self.idle]:
            try:
                if list(selector.drafters) != self.names:
                    raise ConfigError("another pool")
                change(selector)
            except ConfigError:
                self.idle.remove(selector)

    def _new_selector(self, names: Sequence[str], levels: Sequence[int], options: Mapping[str, object]) -> Selector:
        if callable(self.choose):
            return self.choose(list(names), list(levels))
        return build_selector(self.choose, names, max(1, *levels), levels=levels, **options)

    def add(
        self, name: str, drafter: Drafter, shape: TreeShape, cost: float | None = None, tree: TreeShape | None = None
    ) -> None:
        """Add a drafter, last in the order.

        shape: the engine's trees.  cost: seconds of its cycles, if the selector was given costs.  tree: of its own.
        """
        self.options = self.options_with(name, cost)
        if tree is not None:
            self.shapes[name] = tree
        levels = self.levels_of(name, drafter, shape)
        self._change_idle(lambda selector: selector.add_drafter(name, cost, min(levels, selector.depth)))
        self.drafters[name] = drafter

    def options_with(self, name: str, cost: float | None) -> dict[str, object]:
        """The selector's options with one more drafter; ConfigError if the selector or router refuses it."""
        if name in self.drafters:
            raise ConfigError(f"the pool already has a drafter {name!r}; it has {', '.join(self.drafters)}")
        options = dict(self.options)
        if (costs := options.get("costs")) is not None:
            if cost is None:
                raise ConfigError(f"the selector was given costs; add {name!r} with cost=SECONDS of its cycles")
            options["costs"] = [*costs, cost]
        self._try([*self.names, name], options)
        return options

    def replace(self, name: str, drafter: Drafter) -> None:
        """Replace a drafter by one that takes the same trees."""
        reader = self._reader(name)
        self.drafters[name] = drafter
        if self._reader(name) is not reader:
            self.stacks = {names: stack for names, stack in self.stacks.items() if name not in names}

    def remove(self, name: str) -> None:
        """Remove a drafter."""
        self.options = self.options_without(name)
        number = self.names.index(name)
        self._change_idle(lambda selector: selector.remove_drafter(number))
        del self.drafters[name]
        self.shapes.pop(name, None)
        self.stacks = {names: stack for names, stack in self.stacks.items() if name not in names}

    def options_without(self, name: str) -> dict[str, object]:
        """The selector's options without a drafter; ConfigError if the pool needs it."""
        if name not in self.drafters:
            raise ConfigError(f"the pool has no drafter {name!r}; it has {', '.join(self.drafters)}")
        if len(self.drafters) == 1:
            raise ConfigError(f"{name!r} is the only drafter of the pool and cannot be removed")
        if self.worth is not None and name == self.names[0]:
            raise ConfigError(f"drafter=auto compares the rest with {name!r}, so it cannot be removed")
        options = dict(self.options)
        if (costs := options.get("costs")) is not None:
            options["costs"] = [cost for cost, member in zip(costs, self.names, strict=True) if member != name]
        remaining = [member for member in self.names if member != name]
        try:
            self._try(remaining, options)
        except ConfigError as error:
            raise ConfigError(
                f"the pool's selector or router needs {name!r}, which cannot be removed: {error}"
            ) from None
        return options

    def _try(self, names: Sequence[str], options: Mapping[str, object]) -> None:
        """Refuse drafters that the selector or the router cannot serve."""
        if not callable(self.choose):
            self._new_selector(names, [1] * len(names), options)
        if self.router is not None:
            self.router.label_shares(names)

    def check(self, target: Target) -> None:
        """Refuse drafters of another target or vocabulary, and a router that has no label for any of them."""
        if self.router is not None:
            self.router.label_shares(self.names)
            if self.router.kind == "text" and target.tokenizer is None:
                raise ConfigError(f"a router with features=text needs a tokenizer, and {target.name} has none")
        for name, drafter in self.drafters.items():
            check_drafter(name, drafter, target)

    def groups(self) -> list[tuple[list[str], DrafterGroup]]:
        """Groups of drafters that read in one pass, with their names; without rows."""
        return [(names, self.group(names)) for names in self.stacked_names()]

    def stacked_names(self) -> list[list[str]]:
        """Names of the drafters of each group that reads in one pass, in stacking order."""
        alike: dict[tuple, list[str]] = {}
        for name, drafter in self.drafters.items():
            reader = kind_of(drafter).reader(drafter)
            key = kind_of(reader).stack_key(reader)
            alike.setdefault((reader.kind, name if key is None else key, key is None), []).append(name)
        groups = []
        for names in alike.values():
            readers = [self._reader(name) for name in names]
            groups.append([names[index] for index in kind_of(readers[0]).stack_order(readers)])
        return groups

    def _reader(self, name: str) -> Drafter:
        drafter = self.drafters[name]
        return kind_of(drafter).reader(drafter)

    def group(self, names: Sequence[str]) -> DrafterGroup:
        """The group of drafters that read in one pass, without rows."""
        key, readers = tuple(names), [self._reader(name) for name in names]
        kind = kind_of(readers[0])
        if key not in self.stacks:
            self.stacks[key] = kind.stack(readers)
        return kind.group(self.stacks[key])


def group_alone(drafter: Drafter) -> DrafterGroup:
    """A group of one drafter, without rows."""
    reader = kind_of(drafter).reader(drafter)
    return kind_of(reader).group(kind_of(reader).stack([reader]))


def check_drafter(name: str, drafter: Drafter, target: Target) -> None:
    """Refuse an object that is no drafter, or a drafter of another target or vocabulary."""
    kind_of(drafter, name).check(name, drafter, target)
