"""In vLLM's V2 runner a pool drafts, judges and chooses as a loop over requests does that keeps no cache.

Axes: N drafters, B requests, R flattened rows, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.stacked import StackedDrafters, family_order
from drafterforge.errors import ConfigError
from drafterforge.interop.vllm.metrics import FOLDER, PoolTotals
from drafterforge.selectors.batched import batched_selector
from tests.interop import vllm_v2
from tests.interop.v2_server import (
    DEPTH,
    LENGTH,
    MOST,
    NAMES,
    LeaderSelector,
    Rows,
    Server,
    chain,
    new_request,
    propose,
)
from tests.models import tiny_drafter, tiny_target
from tests.runtime.drafters import full_drafters, lora_drafters

ROOM = "drafterforge.interop.vllm"


@dataclass
class Serving:
    """What the speculator asks `PoolServing` for."""

    stacked: list[str]
    hint: Callable[..., list[bool]]
    lookups: tuple[str, ...] = ("datastore",)
    drafter: str = ""
    router: None = None
    record: None = None

    def arms(self, count: int) -> list[str]:
        return self.stacked[:count]

    def selector(self, num_arms: int, depth: int, num_slots: int, device: torch.device) -> LeaderSelector:
        return LeaderSelector(num_arms, num_slots, device)

    def allowed(self, sampling_params: Any) -> list[bool]:
        return self.hint(self, sampling_params)


@pytest.fixture
def room(monkeypatch) -> Iterator[SimpleNamespace]:
    """The plug-in's modules, imported with stubs of vLLM."""
    before = set(sys.modules)
    for name, stub in vllm_v2.modules().items():
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setattr(vllm_v2.Attention, "layers", {})
    monkeypatch.setattr(vllm_v2.Attention, "sizes", (MOST, LENGTH))
    names = ("judging", "model", "speculator", "settings", "pool_folder")
    yield SimpleNamespace(**{name: importlib.import_module(f"{ROOM}.{name}") for name in names})
    for name in set(sys.modules) - before:
        if name.startswith(ROOM):
            del sys.modules[name]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def members(target) -> list[FusedDrafter]:
    """A generalist, two LoRA experts, and a drafter with weights of its own."""
    torch.manual_seed(3)
    drafters = [*lora_drafters(target, 3), *full_drafters(target, 1)]
    return [drafters[index] for index in family_order(drafters)]


def config_of(room, target, architecture: str, **changes: Any) -> SimpleNamespace:
    """A `VllmConfig` with what is read of it."""
    settings = tiny_drafter(target).spec.to_config("float32")
    hf_config = SimpleNamespace(
        architectures=[architecture], vocab_size=settings["vocab_size"], to_dict=lambda: settings
    )
    draft = SimpleNamespace(hf_config=hf_config, model="nowhere", get_hidden_size=lambda: settings["hidden_size"])
    speculative = SimpleNamespace(
        method="eagle3",
        num_speculative_tokens=DEPTH,
        draft_model_config=draft,
        draft_sample_method="greedy",
        enable_adaptive_verification=False,
    )
    parallel = SimpleNamespace(prefill_context_parallel_size=1)
    for name, value in changes.items():
        setattr(speculative if hasattr(speculative, name) else parallel, name, value)
    return SimpleNamespace(
        speculative_config=speculative,
        parallel_config=parallel,
        additional_config={},
        scheduler_config=SimpleNamespace(max_num_seqs=MOST, max_num_batched_tokens=MOST * LENGTH),
        model_config=SimpleNamespace(dtype=torch.float32, get_total_num_hidden_layers=lambda: 7),
        cache_config=None,
        load_config=SimpleNamespace(load_format="auto"),
        model_class=room.model.PoolEagle3,
    )


def build(room, monkeypatch, target, members: list[FusedDrafter], device: str = "cpu"):
    """A pool's speculator that has loaded its model, and its runner."""
    names = NAMES[: len(members)]
    serving = Serving(names, room.settings.PoolServing.allowed)
    monkeypatch.setattr(room.settings.PoolServing, "of", staticmethod(lambda config: serving))
    pool = SimpleNamespace(stacked=names, spec=members[0].spec, stack=lambda embedding: StackedDrafters(members))
    monkeypatch.setattr(room.pool_folder.PoolFolder, "open", staticmethod(lambda folder: pool))
    room.speculator.install()
    runner_class = sys.modules["vllm.v1.worker.gpu.model_runner"].GPUModelRunner
    speculator_class = sys.modules["vllm.v1.worker.gpu.spec_decode.eagle.speculator"].EagleSpeculator
    speculator = speculator_class(config_of(room, target, room.pool_folder.ARCHITECTURE), torch.device(device))
    embedding = nn.Embedding.from_pretrained(target.backbone.embedding.to(device))
    speculator.load_model(SimpleNamespace(embed_tokens=embedding, lm_head=nn.Linear(1, 1)))
    return speculator, runner_class(speculator, MOST)


def output(new: list[Any] = (), finished: set[str] = frozenset(), preempted: set[str] = frozenset()) -> SimpleNamespace:
    """A `SchedulerOutput` with what is read of it."""
    return SimpleNamespace(
        scheduled_new_reqs=list(new), finished_req_ids=set(finished), preempted_req_ids=set(preempted)
    )


@pytest.fixture
def server(room, monkeypatch, target, members) -> Server:
    return Server(*build(room, monkeypatch, target, members), members)


def test_hits_choices_and_drafted_tokens_equal_those_of_a_loop_over_requests(server, target):
    width = target.config.hidden_size
    first, second, third = (new_request(name, length, width) for name, length in (("a", 9), ("b", 4), ("c", 14)))
    server.runner.add_requests(output([first, second]))
    choices = [server.step([first, second])]
    server.runner.add_requests(output([third]))
    choices += [server.step([second, third, first], chunk=5, padding=2) for _ in range(3)]
    choices += [server.step([third, first]) for _ in range(2)]
    choices += [server.step([first, third, second]) for _ in range(6)]
    assert len({arm for row in choices for arm in row}) > 2
    assert all(slots.tolist() == [6] * len(slots) for slots in server.selector.dropped)


@pytest.mark.parametrize("unknown", ["poems", "datastore"])  # of no drafter, and of one that reads on the host
def test_a_hint_fixes_the_drafter_of_its_request(server, target, unknown):
    width = target.config.hidden_size
    requests = [new_request("a", 5, width, "chat"), new_request("b", 7, width), new_request("c", 4, width, unknown)]
    server.runner.add_requests(output(requests))
    choices = [server.step(requests) for _ in range(5)]
    assert {row[0] for row in choices} == {NAMES.index("chat")}


def test_a_drafter_without_a_guess_is_chosen_only_if_no_other_may_be(server, room):
    selection, one_row = server.speculator.selection, torch.zeros(1, 1, dtype=torch.long)
    window, slots = room.judging.newest_rows(one_row[0], one_row[0], 1), torch.tensor([0])
    guesses = torch.tensor([-1, 7, 7, 7])[:, None, None]
    for hint, choice in ((None, 1), ("general", 0)):
        params = SimpleNamespace(extra_args={"drafter": hint} if hint else None)
        selection.begin(slots, torch.tensor([1]), torch.tensor(selection.hints([params])))
        assert selection.select(slots, window, guesses, one_row, one_row, one_row[0]).tolist() == [choice]


def test_a_router_advises_when_the_prompt_is_read(server, target):
    request = new_request("a", 7, target.config.hidden_size)
    server.speculator.selection.advice = lambda features: features
    server.runner.add_requests(output([request]))
    for _ in range(4):
        server.step([request], chunk=4)
    slot = server.speculator.slots[server.runner.req_states.req_id_to_index["a"]]
    advised = [(slots, advice) for slots, advice in server.selector.begun if advice is not None]
    assert [slots.tolist() for slots, _ in advised] == [[2 * MOST], [slot]]
    assert torch.equal(advised[1][1], request.features[6:7])


def test_selectors_of_the_server_choose(room, monkeypatch, target, members):
    monkeypatch.setattr(
        Serving, "selector", lambda self, *sizes: batched_selector("static", NAMES, *sizes[1:], drafter="code")
    )
    speculator, runner = build(room, monkeypatch, target, members)
    request = new_request("a", 5, target.config.hidden_size)
    runner.add_requests(output([request]))
    server = Server(speculator, runner, members)
    rows = server.process(request, LENGTH)
    assert propose(server, [rows], 0, 0) == [chain(members[3], request.tokens, request.features, DEPTH)]


@pytest.mark.parametrize(("rank", "cycles"), [(0, [{"general": 0, "sql": 0, "chat": 0, "code": 4}]), (1, [])])
def test_the_first_rank_alone_counts_cycles(room, monkeypatch, target, members, tmp_path, rank, cycles):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(room.speculator, "get_tensor_model_parallel_rank", lambda: rank)
    monkeypatch.setattr(
        Serving, "selector", lambda self, *sizes: batched_selector("static", NAMES, *sizes[1:], drafter="code")
    )
    speculator, runner = build(room, monkeypatch, target, members)
    server, request = Server(speculator, runner, members), new_request("a", 5, target.config.hidden_size)
    runner.add_requests(output([request]))
    for _ in range(5):  # the first reads the prompt, after which nothing was drafted
        request.drafts = propose(server, [server.process(request, LENGTH)], 0, 0)[0]
    if meter := speculator.selection.meter:
        meter.close()
    assert [PoolTotals.read(path).cycles for path in tmp_path.iterdir()] == cycles


def test_a_number_that_is_used_again_starts_blank(server, target):
    width = target.config.hidden_size
    first, second = new_request("a", 6, width), new_request("b", 6, width)
    server.runner.add_requests(output([first]))
    for _ in range(6):
        server.step([first])
    number = server.runner.req_states.req_id_to_index["a"]
    slot = int(server.speculator.slots[number])
    assert server.selector.totals[slot].sum() > 0
    server.runner.finish_requests(output(finished={"a"}))
    assert [slots.tolist() for slots in server.selector.ended] == [[slot]]
    server.runner.add_requests(output([second]))
    assert server.runner.req_states.req_id_to_index["b"] == number
    assert server.selector.totals[int(server.speculator.slots[number])].sum() == 0
    for _ in range(4):
        server.step([second])


def test_a_preempted_request_keeps_what_it_learned(server, target):
    width = target.config.hidden_size
    first, second = new_request("a", 6, width), new_request("b", 6, width)
    server.runner.add_requests(output([first]))
    for _ in range(5):
        server.step([first])
    server.runner.finish_requests(output(preempted={"a"}))
    server.runner.add_requests(output([second]))
    server.step([second])
    server.runner.add_requests(output([first]))
    assert server.selector.ended == []
    first.computed, first.drafts = 0, []
    for _ in range(3):
        server.step([second, first])


def test_rows_of_other_ranks_change_nothing(server, target):
    request = new_request("a", 6, target.config.hidden_size)
    server.runner.add_requests(output([request]))
    for _ in range(4):
        server.step([request], rows_across=3)


def test_a_dummy_run_between_cycles_changes_nothing(server, target):
    request = new_request("a", 6, target.config.hidden_size)
    server.runner.add_requests(output([request]))
    for _ in range(3):
        server.step([request])
    features = torch.randn(2, 3 * target.config.hidden_size)
    propose(server, [Rows(number, [1, 2], [0, 1], features, 1, 0) for number in range(MOST)], 0, 0, dummy_run=True)
    assert server.selector.observed[-1][2].tolist() == [0] * MOST
    for _ in range(3):
        server.step([request])


def test_no_cycle_waits_for_the_device(room, monkeypatch, target):
    torch.manual_seed(3)
    meta = SimpleNamespace(
        config=target.config,
        backbone=SimpleNamespace(embedding=target.backbone.embedding.to("meta"), taps=target.backbone.taps),
    )
    drafters = [FusedDrafter(tiny_drafter(target), meta.backbone.embedding) for _ in range(2)]
    speculator, runner = build(room, monkeypatch, meta, drafters, "meta")
    width = target.config.hidden_size
    runner.add_requests(output([new_request("a", 5, width), new_request("b", 5, width, "sql")]))
    for size in (5, 1 + DEPTH, 1 + DEPTH):
        rows = 2 * size
        batch = vllm_v2.InputBatch(
            num_reqs=2,
            num_tokens=rows,
            num_tokens_after_padding=rows,
            idx_mapping=torch.arange(2, device="meta"),
            query_start_loc=torch.arange(0, rows + 1, size, dtype=torch.int32, device="meta"),
            input_ids=torch.zeros(rows, dtype=torch.int32, device="meta"),
            positions=torch.zeros(rows, dtype=torch.long, device="meta"),
        )
        numbers = torch.zeros(rows, dtype=torch.long, device="meta")
        ones = torch.ones(2, dtype=torch.long, device="meta")
        features = list(torch.zeros(rows, 3 * width, device="meta").chunk(3, dim=1))
        metadata = dict.fromkeys(vllm_v2.Attention.layers, vllm_v2.Metadata(numbers, numbers))
        sampled = torch.zeros(MOST, 1, dtype=torch.long, device="meta")
        drafted = speculator.propose(batch, metadata, {}, None, features, ones, ones, sampled, ones[None], None, None)
        assert drafted.shape == (2, DEPTH) and drafted.device.type == "meta"
    runner.finish_requests(output(finished={"b", "a"}))


def test_every_drafter_has_an_attention_layer_of_its_own(server):
    names = {f"model.layers.{number}.self_attn.attn" for number in range(7, 11)}
    assert set(vllm_v2.Attention.layers) == names
    assert server.speculator.draft_attn_layer_names == names


def test_a_pool_runs_eagerly_and_other_drafters_are_as_stock(room, monkeypatch, target, members):
    speculator, runner = build(room, monkeypatch, target, members)
    speculator.init_cudagraph_manager("FULL")
    speculator.capture()
    assert (speculator.cudagraph_mode, speculator.num_captures) == ("NONE", 0)
    stock = type(speculator)(config_of(room, target, "Eagle3LlamaForCausalLM"), torch.device("cpu"))
    stock.init_cudagraph_manager("FULL")
    stock.capture()
    stock.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
    tokens = stock.sample_draft(torch.eye(3), None, None, None, None, None, None)
    assert (stock.cudagraph_mode, stock.num_captures, tokens.tolist()) == ("FULL", 1, [0, 1, 2])
    assert stock.hidden_size * len(members) == speculator.hidden_size
    runner.speculator = stock
    runner.add_requests(output([new_request("a", 3, 1)]))
    runner.finish_requests(output(finished={"a"}))
    runner.speculator = None  # on ranks that do not draft
    runner.add_requests(output([new_request("b", 3, 1)]))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("draft_sample_method", "probabilistic"),
        ("enable_adaptive_verification", True),
        ("prefill_context_parallel_size", 2),
    ],
)
def test_settings_that_a_pool_cannot_have_are_refused(room, target, setting, value):
    config = config_of(room, target, room.pool_folder.ARCHITECTURE, **{setting: value})
    with pytest.raises(ConfigError, match=setting):
        room.speculator.PoolSpeculator(config, torch.device("cpu"))


def test_records_are_refused(room, server):
    config = server.speculator.vllm_config
    config.additional_config = {"drafterforge": {"record": "records"}}
    with pytest.raises(ConfigError, match="cannot record traffic"):
        type(server.speculator)(config, torch.device("cpu"))


def test_the_seconds_of_cycles_leave_the_start_and_idle_time_out(room, monkeypatch, target, members, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(
        Serving, "selector", lambda self, *sizes: batched_selector("static", NAMES, *sizes[1:], drafter="code")
    )
    speculator, runner = build(room, monkeypatch, target, members)
    selection, server = speculator.selection, Server(speculator, runner, members)
    width = target.config.hidden_size

    def step(request: Any) -> None:
        request.drafts = propose(server, [server.process(request, LENGTH)], 0, 0)[0]

    first, second = new_request("a", 6, width), new_request("b", 6, width)
    assert selection.ended is None
    runner.add_requests(output([first]))
    step(first)
    step(first)
    runner.finish_requests(output(finished={"a"}))
    selection.ended -= 1000.0  # nothing to do
    runner.add_requests(output([second]))
    step(second)
    assert 0 < selection.meter.cycle_s < 500.0
    selection.ended -= 1000.0  # a long cycle
    step(second)
    selection.meter.close()
    assert selection.meter.cycle_s > 1000.0
