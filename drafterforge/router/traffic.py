"""Kinds of traffic, by the router's features, and advice to use the drafters that were learned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from drafterforge.config.names import domain_of
from drafterforge.router.router import Router

UNKNOWN = "traffic-1"  # the kind of requests that the router does not recognise
LEAST_PROBABILITY = 0.95  # of a label, to be the kind of a request: routers are overconfident of unknown kinds


def traffic_kind(router: Router | None, features: Tensor) -> str:
    """The kind of a request: a label of the router, or `UNKNOWN`.  features: the target's of its prompt, [P, 3H]."""
    if router is None or router.kind != "target":
        return UNKNOWN
    probabilities = router.probabilities(features)
    best = int(probabilities.argmax())
    return router.labels[best] if probabilities[best] >= LEAST_PROBABILITY else UNKNOWN


class TrafficRouter:
    """A router that advises the newest drafter learned from a request's kind, or what another router advises."""

    def __init__(self, router: Router | None, drafters: Mapping[str, str], sorts: Router | None) -> None:
        """drafters: kind of traffic -> name.  sorts: the router that tells the kinds."""
        self.router, self.drafters, self.sorts = router, dict(drafters), sorts

    @property
    def kind(self) -> str:
        """See `Router`."""
        return "target" if self.router is None else self.router.kind

    def label_shares(self, drafters: Sequence[str]) -> np.ndarray:
        """See `Router`."""
        return np.zeros((0, len(drafters))) if self.router is None else self.router.label_shares(drafters)

    def advice(self, tokens: Sequence[int], features: Tensor, drafters: Sequence[str], tokenizer: Any) -> np.ndarray:
        """See `Router`."""
        names = [domain_of(name) for name in drafters]
        learned = self.drafters.get(traffic_kind(self.sorts, features), "")
        if learned in names or self.router is None:
            return np.eye(len(names))[names.index(learned) if learned in names else 0]
        return self.router.advice(tokens, features, drafters, tokenizer)
