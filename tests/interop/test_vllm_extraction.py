"""What vLLM keeps of a finished request is split into features and outputs, whatever the number of taps."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer
from tests.interop.stub_modules import modules_with

HIDDEN = 8
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
STATUS = SimpleNamespace(FINISHED_STOPPED=1, FINISHED_LENGTH_CAPPED=2)
STUBS = {
    f"{CONNECTORS}.base": {"KVConnectorMetadata": object},
    f"{CONNECTORS}.example_hidden_states_connector": {
        "ExampleHiddenStatesConnector": object,
        "extract_from_kv_cache": None,
    },
    "vllm.v1.request": {"RequestStatus": STATUS},
}


@pytest.fixture
def extraction(monkeypatch) -> ModuleType:
    """The connector's module, imported with stubs of vLLM."""
    for name, module in modules_with(STUBS).items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.find_spec("drafterforge.interop.vllm.extraction")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("num_taps", [3, 5])
def test_the_last_layer_s_outputs_are_those_behind_all_taps(extraction, num_taps):
    ids, written = list(range(9)), []
    stored = torch.randn(len(ids) - 1, num_taps + 1, HIDDEN)
    connector = extraction.StreamConnector.__new__(extraction.StreamConnector)
    connector._rows = lambda blocks, count: stored[:count]
    connector.writer = SimpleNamespace(add=lambda number, served: written.append(served))
    answer = Answer("a", "", "", "train", ids, [0] * 4 + [1] * 5, 4, 5, True)
    connector._write(extraction.FinishedRequest("a", 0, answer, [0]))
    (served,) = written
    assert isinstance(served, ServedAnswer) and served.features.shape == (8, num_taps * HIDDEN)
    for tap in range(num_taps):
        assert torch.equal(served.features[:, tap * HIDDEN : (tap + 1) * HIDDEN], stored[:, tap])
    assert torch.equal(served.outputs, stored[:, num_taps])


def finished(extraction, parameters, labels: dict | None = None, name: str = "r"):
    """What a connector streams of a request with these parameters."""
    connector = extraction.StreamConnector.__new__(extraction.StreamConnector)
    connector.labels, connector.finished = labels or {}, []
    request = SimpleNamespace(
        request_id=name,
        status=STATUS.FINISHED_STOPPED,
        prompt_token_ids=[1, 2, 3],
        all_token_ids=[1, 2, 3, 4, 5],
        lora_request=None,
        mm_features=[],
        kv_transfer_params={extraction.PARAMETERS: parameters},
    )
    assert connector.request_finished(request, [0]) == (True, None)
    return connector.finished[0]


@pytest.mark.parametrize("parameters", [5, {"answered": [[0, 10**9]], "split": "val", "number": 7, "last": 9}])
def test_what_a_client_of_a_server_says_of_its_request_is_not_read(extraction, parameters):
    entry = finished(extraction, parameters)
    assert (entry.number, entry.answer.split, entry.answer.input_ids) == (-1, "train", [1, 2, 3, 4, 5])
    assert entry.answer.loss_mask == [0, 0, 0, 1, 1]


def test_two_requests_that_a_client_names_alike_have_ids_of_their_own(extraction):
    ids = {finished(extraction, {"id": "a"}, name="again").answer.id for _ in range(2)}
    assert len(ids) == 2


def test_what_prepare_data_says_of_a_request_is_read(extraction):
    parameters = {"number": 7, "id": "p", "split": "val", "answered": [[1, 2]], "last": 9}
    entry = finished(extraction, parameters, {"labels": {"target": "f"}})
    assert (entry.number, entry.answer.id, entry.answer.split) == (7, "p", "val")
    assert (entry.answer.input_ids[-1], entry.answer.loss_mask) == (9, [0, 1, 0, 1, 1])
