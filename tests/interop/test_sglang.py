"""In SGLang a pool drafts, judges and chooses as a loop over requests does that keeps no cache.

It is the loop that vLLM's room equals.  SGLang itself has never run with the plug-in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drafterforge.bundle.record import Defaults
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.sglang import contract, plugin
from drafterforge.interop.vllm import pool_folder
from drafterforge.interop.vllm.contract import definitions
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE, POOL, PoolFolder
from drafterforge.interop.vllm.settings import PoolServing
from tests.interop import sglang_engine
from tests.interop.sglang_engine import EAGLEWorkerV2, SpeculativeAlgorithm, reset_settings
from tests.interop.sglang_server import SGLangServer, build_worker, mixed_members, stubbed_room
from tests.interop.test_vllm_speculator import Serving
from tests.interop.v2_server import DEPTH, NAMES, new_request
from tests.models import tiny_drafter, tiny_target


@pytest.fixture
def room(monkeypatch) -> Iterator[SimpleNamespace]:
    with stubbed_room(monkeypatch) as modules:
        yield modules


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def members(target) -> list[FusedDrafter]:
    return mixed_members(target)


def build(monkeypatch, folder: Path, members: list[FusedDrafter], **changes: Any):
    """The worker of a pool of `members`, whose folder is not read."""
    names, spec = NAMES[: len(members)], members[0].spec
    (folder / "config.json").write_text(json.dumps({POOL: names}))
    monkeypatch.setattr(PoolServing, "open", staticmethod(lambda *_: Serving(names, PoolServing.allowed)))
    pool = SimpleNamespace(folder=folder, stacked=names, spec=spec, stack=lambda embedding: StackedDrafters(members))
    monkeypatch.setattr(PoolFolder, "open", staticmethod(lambda path: pool))
    return build_worker(folder, members[0].embedding, len(names), **changes)


@pytest.fixture
def server(room, monkeypatch, tmp_path, members) -> SGLangServer:
    return SGLangServer(*build(monkeypatch, tmp_path, members), members)


def test_hits_choices_and_drafted_tokens_equal_those_of_a_loop_over_requests(server, target):
    width = target.config.hidden_size
    first, second, third = (new_request(name, length, width) for name, length in (("a", 9), ("b", 4), ("c", 14)))
    for request in (first, second):
        server.add(request)
    choices = [server.prefill([first, second])]
    choices += [server.decode([first, second]) for _ in range(3)]
    server.add(third)
    choices += [server.prefill([third], chunk=5) for _ in range(3)]
    choices += [server.decode([second, third, first]) for _ in range(3)]
    choices += [server.decode([third, first]) for _ in range(2)]
    choices += [server.decode([first, third, second]) for _ in range(6)]
    assert len({arm for row in choices for arm in row}) > 2
    spare = 2 * len(server.pool.req_to_token)
    assert all(slots.tolist() == [spare] * len(slots) for slots in server.selector.dropped)


def test_a_shared_prefix_is_there_for_all_drafters(server, target):
    first = new_request("a", 12, target.config.hidden_size)
    server.add(first)
    server.prefill([first])
    server.decode([first])
    second = new_request("b", 12, target.config.hidden_size)
    second.tokens[:9], second.features[:8] = first.tokens[:9], first.features[:8]
    server.add(second, shared=first, length=8)
    server.prefill([second])
    for _ in range(4):
        server.decode([first, second])


def test_a_running_request_takes_part_in_a_prefill(server, target):
    width = target.config.hidden_size
    first, second = new_request("a", 9, width), new_request("b", 6, width)
    server.add(first)
    server.prefill([first])
    server.decode([first])
    server.add(second)
    server.prefill([second, first])  # mixed chunks: the running one reads its newest token
    for _ in range(3):
        server.decode([second, first])


@pytest.mark.parametrize("unknown", ["poems", "datastore"])  # of no drafter, and of one that reads on the host
def test_a_hint_fixes_the_drafter_of_its_request(server, target, unknown):
    width = target.config.hidden_size
    requests = [new_request("a", 5, width, "chat"), new_request("b", 7, width), new_request("c", 4, width, unknown)]
    for request in requests:
        server.add(request)
    choices = [server.prefill(requests), *(server.decode(requests) for _ in range(4))]
    assert {row[0] for row in choices} == {NAMES.index("chat")}


def test_a_router_advises_when_the_prompt_is_read(server, target):
    request = new_request("a", 7, target.config.hidden_size)
    server.drafting.selection.advice = lambda features: features
    server.add(request)
    for _ in range(2):
        server.prefill([request], chunk=4)
    server.decode([request])
    advised = [(slots, advice) for slots, advice in server.selector.begun if advice is not None]
    spare = 2 * len(server.pool.req_to_token)
    assert [slots.tolist() for slots, _ in advised] == [[spare], [server.drafting.requests.slots["a"]]]
    assert torch.equal(advised[1][1], request.features[6:7])


def test_a_place_that_is_used_again_starts_blank(server, target):
    width = target.config.hidden_size
    first, second = new_request("a", 6, width), new_request("b", 6, width)
    server.add(first)
    server.prefill([first])
    for _ in range(5):
        server.decode([first])
    slot = server.drafting.requests.slots["a"]
    assert server.selector.totals[slot].sum() > 0
    server.remove(first, is_finished=True)
    assert server.selector.ended == []  # SGLang's scheduler must not write where a cycle may run
    server.pool.free = sorted(server.pool.free)
    server.add(second)
    server.prefill([second])
    assert [slots.tolist() for slots in server.selector.ended] == [[slot]]
    assert server.drafting.requests.slots == {"b": slot} and server.selector.totals[slot].sum() == 0
    for _ in range(3):
        server.decode([second])


def test_a_retracted_request_keeps_what_it_learned(server, target):
    width = target.config.hidden_size
    first, second = new_request("a", 6, width), new_request("b", 6, width)
    server.add(first)
    server.prefill([first])
    for _ in range(4):
        server.decode([first])
    server.remove(first, is_finished=False)
    server.add(second)
    server.prefill([second])
    server.decode([second])
    server.add(first)
    server.prefill([first])
    for _ in range(2):
        server.decode([second, first])
    assert server.selector.ended == []


def test_no_cycle_waits_for_the_device(room, monkeypatch, tmp_path, target):
    torch.manual_seed(3)
    embedding = target.backbone.embedding.to("meta")
    drafters = [FusedDrafter(tiny_drafter(target), embedding) for _ in range(2)]
    monkeypatch.setattr(sglang_engine.RequestPool, "add", lambda pool, shared: pool.free.pop(0))
    worker, pool = build(monkeypatch, tmp_path, drafters, device="meta")
    server, width = SGLangServer(worker, pool, drafters), target.config.hidden_size
    requests = [new_request("a", 5, width), new_request("b", 5, width, "sql")]
    for request in requests:
        server.add(request)
    pool.req_to_token, rows = pool.req_to_token.to("meta"), 2 * (DEPTH + 1)
    for is_prompt in (True, False, False):
        size = 5 if is_prompt else DEPTH + 1
        model = worker.draft_worker.model
        model.outputs = torch.zeros(2, 2 * size, width, device="meta")
        batch = SimpleNamespace(
            reqs=server.batch(requests, None, [5, 5]).reqs,
            req_pool_indices=torch.arange(2, device="meta"),
            seq_lens=torch.zeros(2, dtype=torch.long, device="meta"),
            extend_lens=[5, 5],
            input_ids=torch.zeros(2 * size, dtype=torch.long, device="meta"),
        )
        following = sglang_engine.EagleDraftInput()
        result = SimpleNamespace(
            accept_lens=torch.ones(2, dtype=torch.int32, device="meta"),
            new_seq_lens=torch.zeros(2, dtype=torch.long, device="meta"),
            next_draft_input=following,
        )
        base = room.worker.PoolDraftWorker.__base__
        monkeypatch.setattr(base, "_draft_extend_for_prefill", lambda *_, result=following: result)
        monkeypatch.setattr(base, "_draft_extend_for_decode", lambda *_, **__: None)
        if is_prompt:
            features = torch.zeros(rows, 3 * width, device="meta")
            assert worker.draft_worker._draft_extend_for_prefill(batch, features, None) is following
        else:
            worker.draft_worker._draft_extend_for_decode(batch, result)
        assert following.topk_index.shape == (2, 1) and following.hidden_states.device.type == "meta"
    server.worker.note_request_finished(rid="a", natural_stop=False)
    worker.draft_worker._schedule(batch.reqs[1:])


def test_every_drafter_has_a_layer_of_the_cache_and_no_graph_is_captured(server, members):
    assert [layer.layer_id for layer in server.drafting.model.attention] == list(range(len(members)))
    assert server.drafting.cuda_graph_runner is None and server.drafting.cuda_graph_runner_for_draft_extend is None
    assert not server.drafting.is_graph_captured


def test_drafters_that_are_no_pool_have_sglangs_worker(room, tmp_path):
    for path in (None, str(tmp_path), "some/repository"):
        reset_settings(path)
        worker = plugin.create_worker(SpeculativeAlgorithm.create_worker, SpeculativeAlgorithm.EAGLE3, None)
        assert worker is EAGLEWorkerV2
    assert sglang_engine.ModelRegistry.models == {}


def test_a_pool_drafts_as_eagle3_only(room, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({POOL: ["general"]}))
    reset_settings(str(tmp_path))
    with pytest.raises(ConfigError, match="type --speculative-algorithm EAGLE3"):
        plugin.create_worker(SpeculativeAlgorithm.create_worker, SpeculativeAlgorithm.EAGLE, None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("speculative_eagle_topk", 4),
        ("speculative_draft_load_format", None),
        ("speculative_use_rejection_sampling", True),
        ("speculative_adaptive", True),
        ("speculative_draft_window_size", 512),
        ("tp_size", 2),
        ("pp_size", 2),
        ("disaggregation_mode", "decode"),
    ],
)
def test_settings_that_a_pool_cannot_have_are_refused(room, monkeypatch, tmp_path, members, setting, value):
    with pytest.raises(ConfigError, match=f"{setting}.*; .*--"):
        build(monkeypatch, tmp_path, members, **{setting: value})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"is_multimodal": True}, ConfigError, "multimodal target"),
        ({"dtype": torch.float16}, ConfigError, "type --dtype float32"),
        ({"num_hidden_layers": 1}, ArtifactError, "1 layers for 4 drafters"),
    ],
)
def test_targets_and_folders_that_do_not_fit_are_refused(room, monkeypatch, tmp_path, members, change, error, message):
    with pytest.raises(error, match=message):
        build(monkeypatch, tmp_path, members, **change)


def test_settings_come_from_an_environment_variable(room, monkeypatch, tmp_path):
    record = SimpleNamespace(defaults=Defaults(["general", "sql"], "normalhedge"))
    pool = SimpleNamespace(stacked=["general", "sql"], lookups=[], record=record, router=lambda: None)
    monkeypatch.setattr(PoolFolder, "open", staticmethod(lambda folder: pool))
    serve, variable = room.settings.pool_serving, room.settings.VARIABLE
    assert serve(tmp_path, {}).selector_name == "normalhedge"
    assert serve(tmp_path, {variable: '{"selector": "ucb1", "carry": true}'}).carry
    assert serve(tmp_path, {variable: '{"drafter": "sql"}'}).options == {"drafter": "sql"}
    for text, message in (
        ("[]", "is not a JSON object"),
        ("{", "is not a JSON object"),
        ('{"arm": 1}', f"{variable} has no key 'arm'"),
        ('{"carry": 1}', f"{variable}.carry=1 must be of type bool"),
        ('{"record": "folder"}', "cannot record traffic"),
    ):
        with pytest.raises(ConfigError, match=message):
            serve(tmp_path, {variable: text})


def test_the_folder_has_a_layer_of_each_drafter(target):
    spec = tiny_drafter(target).spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_folder, "drafter_source", lambda *_: None)
        patch.setattr(pool_folder, "spec_of", lambda _: spec)
        config = pool_folder.pool_config(Path(), None, NAMES)
    assert config["num_hidden_layers"] == len(NAMES) and config["architectures"] == [ARCHITECTURE]


def test_the_plugin_hooks_the_creation_of_workers(room, monkeypatch):
    monkeypatch.setattr(plugin, "why_not", lambda: "")
    plugin.register()
    assert sglang_engine.HookRegistry.hooks == {plugin.HOOKED: (plugin.create_worker, sglang_engine.HookType.AROUND)}


@pytest.mark.parametrize(
    ("release", "names", "line"),
    [
        ("0.5.22", [], "it is version 0.5.22, and the plug-in knows 0.5.23; type pip install sglang==0.5.23"),
        ("0.5.23", ["sglang.srt.a.B.c"], "it has no sglang.srt.a.B.c"),
    ],
)
def test_a_release_that_does_not_fit_is_left_alone(room, monkeypatch, caplog, release, names, line):
    monkeypatch.setattr(plugin, "installed_release", lambda: release)
    monkeypatch.setattr(contract, "missing_names", lambda: names)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert caplog.messages == [f"drafterforge cannot draft in this SGLang: {line}"]
    assert sglang_engine.HookRegistry.hooks == {}


def test_the_contract_reports_names_and_words_that_are_missing(tmp_path, monkeypatch):
    folder = tmp_path / "engine_with_words"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "worker.py").write_text(
        "class Worker:\n    def draft(self, batch):\n        return self.forward(batch)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = "engine_with_words.worker"
    monkeypatch.setattr(contract, "USED", {module: ("Worker.draft(batch)", "Worker.extend")})
    monkeypatch.setattr(
        contract, "MENTIONED", {module: {"Worker.draft": ("forward", "idle"), "Worker.read": ("rows",)}}
    )
    definitions.cache_clear()
    missing = [".Worker.extend", ".Worker.draft without idle", ".Worker.read without rows"]
    assert contract.missing_names() == [module + name for name in missing]
    definitions.cache_clear()
