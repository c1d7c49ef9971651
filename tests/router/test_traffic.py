"""Requests of a learned kind are advised to its newest drafter, and all the rest as before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.router.traffic import UNKNOWN, TrafficRouter, traffic_kind

NAMES = ["general+store", "sql+store", "sql-traffic-v1+store", "traffic-1-v2+store"]


class Certain:
    """A router that is as certain of sql as it is built."""

    kind, labels = "target", ["general", "sql"]

    def __init__(self, certainty: float) -> None:
        self.certainty = certainty

    def probabilities(self, features: torch.Tensor) -> np.ndarray:
        return np.array([1 - self.certainty, self.certainty])

    def advice(self, tokens, features, drafters, tokenizer) -> np.ndarray:
        return np.array([1 - self.certainty, self.certainty, 0.0, 0.0])

    def label_shares(self, drafters) -> np.ndarray:
        return np.zeros((2, len(drafters)))


FEATURES = torch.zeros(3, 6)


def advised(router: TrafficRouter, names: list[str] = NAMES) -> str:
    return names[int(router.advice([1, 2, 3], FEATURES, names, None).argmax())]


@pytest.mark.parametrize(("certainty", "kind"), [(0.97, "sql"), (0.85, UNKNOWN), (0.6, UNKNOWN), (0.03, "general")])
def test_a_kind_is_a_label_that_the_router_is_certain_of(certainty, kind):
    assert traffic_kind(Certain(certainty), FEATURES) == kind


def test_the_newest_drafter_of_a_kind_is_advised():
    drafters = {"sql": "sql-traffic-v1", UNKNOWN: "traffic-1-v2"}

    def router(certainty: float) -> TrafficRouter:
        return TrafficRouter(Certain(certainty), drafters, Certain(certainty))

    assert advised(router(0.95)) == "sql-traffic-v1+store"
    assert advised(router(0.6)) == "traffic-1-v2+store"
    assert advised(router(0.05)) == "general+store"
    assert advised(router(0.95), NAMES[:2]) == "sql+store"  # it has not joined yet
    unsorted = TrafficRouter(Certain(0.95), drafters, None)  # the learner has sorted without a router
    assert advised(unsorted) == "traffic-1-v2+store" and advised(unsorted, NAMES[:2]) == "sql+store"


def test_without_a_router_all_requests_are_of_one_kind():
    assert traffic_kind(None, FEATURES) == UNKNOWN
    assert advised(TrafficRouter(None, {}, None)) == "general+store"
    assert advised(TrafficRouter(None, {UNKNOWN: "traffic-1-v2"}, None)) == "traffic-1-v2+store"
