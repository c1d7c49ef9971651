"""Random texts that requests of an SGLang server write, checked cycle by cycle against a loop that keeps no cache.

The loop is the one with which vLLM's room is checked, see `v2_server`.
Axes: R rows of a request, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.stacked import family_order
from drafterforge.interop.sglang import plugin
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
from drafterforge.targets.load import Target
from tests.interop import sglang_engine, v2_server
from tests.interop.sglang_engine import (
    EagleDraftInput,
    ForwardMode,
    GenerationBatchResult,
    RequestPool,
    ScheduleBatch,
    SpeculativeAlgorithm,
    reset_settings,
)
from tests.interop.v2_server import DEPTH, LENGTH, NAMES, Request, chain
from tests.runtime.drafters import full_drafters, lora_drafters

ROOM = "drafterforge.interop.sglang"


@contextmanager
def stubbed_room(
    monkeypatch: pytest.MonkeyPatch, draft_worker: type = sglang_engine.EagleDraftWorker
) -> Iterator[SimpleNamespace]:
    """The plug-in's modules, imported with stubs of SGLang.  draft_worker: SGLang's."""
    for name, stub in sglang_engine.modules(draft_worker).items():
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setattr(sglang_engine.ModelRegistry, "models", {})
    monkeypatch.setattr(sglang_engine.HookRegistry, "hooks", {})
    names = ("model", "worker", "settings")
    try:
        yield SimpleNamespace(**{name: importlib.import_module(f"{ROOM}.{name}") for name in names})
    finally:
        for name in ("model", "worker"):
            del sys.modules[f"{ROOM}.{name}"]
            delattr(sys.modules[ROOM], name)


def mixed_members(target: Target) -> list[FusedDrafter]:
    """A generalist, two LoRA experts, and a drafter with weights and a vocabulary of its own."""
    torch.manual_seed(3)
    drafters = [*lora_drafters(target, 3), *full_drafters(target, 1)]
    return [drafters[index] for index in family_order(drafters)]


def build_worker(folder: Path, embedding: Tensor, num_layers: int, **changes: Any) -> tuple[Any, RequestPool]:
    """The worker that the plug-in lets SGLang create for a pool, with its memory, and the pool of its requests.

    embedding: the target's, [V, H].  num_layers: in the pool's config.  changes: of settings and of the target.
    """
    config = SimpleNamespace(
        architectures=[ARCHITECTURE],
        num_hidden_layers=changes.pop("num_hidden_layers", num_layers),
        vocab_size=len(embedding),
    )
    server_args = SimpleNamespace(
        device=changes.pop("device", "cpu"), draft_config=config, dtype=changes.pop("dtype", embedding.dtype)
    )
    target_worker = SimpleNamespace(
        embedding=F.pad(embedding, (0, 0, 0, 3)),  # SGLang pads vocabularies
        model_config=SimpleNamespace(is_multimodal=changes.pop("is_multimodal", False)),
        model_runner=SimpleNamespace(kv_index_translator=None),
    )
    reset_settings(str(folder), **changes)
    worker_class = plugin.create_worker(SpeculativeAlgorithm.create_worker, SpeculativeAlgorithm.EAGLE3, server_args)
    worker = worker_class(server_args=server_args, gpu_id=0, nccl_port=0, target_worker=target_worker)
    requests = RequestPool()
    worker.draft_worker.alloc_memory_pool(
        memory_pool_config=None, req_to_token_pool=requests, token_to_kv_pool_allocator=None
    )
    worker.draft_worker.init_cuda_graphs()
    return worker, requests


class SGLangServer(v2_server.Server):
    """Runs requests through a worker as SGLang's scheduler does, and through the loop that it must equal."""

    def __init__(self, worker: Any, pool: RequestPool, members: list[FusedDrafter]) -> None:
        self.worker, self.drafting, self.pool, self.members = worker, worker.draft_worker, pool, members
        self.selector: v2_server.LeaderSelector = self.drafting.selection.selector
        self.random = torch.Generator().manual_seed(5)
        self.places: dict[str, int] = {}
        self.relay: dict[str, tuple[Tensor, ...]] = {}  # what each request's next drafting begins with
        self.choices: dict[str, int] = {}

    def add(self, request: Request, shared: Request | None = None, length: int = 0) -> None:
        """Give a request a place; its first `length` tokens have the slots of `shared`."""
        slots = self.pool.req_to_token[self.places[shared.req_id], :length] if shared else torch.tensor([]).long()
        self.places[request.req_id] = self.pool.add(slots)
        request.computed, request.drafts = length, []

    def remove(self, request: Request, is_finished: bool) -> None:
        """End or retract a request."""
        self.pool.free.append(self.places.pop(request.req_id))
        if is_finished:
            self.worker.note_request_finished(rid=request.req_id, natural_stop=True)

    def batch(self, requests: list[Request], mode: ForwardMode, lengths: list[int]) -> ScheduleBatch:
        """A batch as the scheduler makes it.  lengths: processed tokens of each text."""
        reqs = [
            SimpleNamespace(
                rid=request.req_id,
                origin_input_ids=request.tokens[: request.prompt_len],
                sampling_params=SimpleNamespace(custom_params=getattr(request.sampling_params, "extra_args", None)),
            )
            for request in requests
        ]
        places = torch.tensor([self.places[request.req_id] for request in requests])
        return ScheduleBatch(reqs, self.pool.req_to_token, places, torch.tensor(lengths), mode)

    def prefill(self, requests: list[Request], chunk: int = LENGTH) -> list[int]:
        """Read prompts, the last one up to `chunk` tokens; returns the drafters that were chosen."""
        starts = [request.computed for request in requests]
        ends = [len(request.tokens) for request in requests]
        ends[-1] = min(ends[-1], starts[-1] + chunk)
        spans = list(zip(requests, starts, ends, strict=True))
        batch = self.batch(requests, ForwardMode.EXTEND, ends)
        batch.input_ids = torch.tensor([token for request, start, end in spans for token in request.tokens[start:end]])
        batch.extend_lens = [end - start for _, start, end in spans]
        features = torch.cat([request.features[start:end] for request, start, end in spans])
        if ends[-1] < len(requests[-1].tokens):
            batch.chunked_req = batch.reqs[-1]
            batch.chunked_req_next_prompt_token = requests[-1].tokens[ends[-1]]
        sampled = []
        for request, _, end in spans:
            request.computed, request.hits, length = end, {}, len(request.tokens)
            sampled.append(self.next_token(request))
            if end == length:
                request.tokens.append(sampled[-1])
                self.learn(request, length)
        following = self.drafting._draft_extend_for_prefill(batch, features, torch.tensor(sampled))
        return self.finish(requests, following)

    def decode(self, requests: list[Request]) -> list[int]:
        """Draft, verify and read; returns the drafters that were chosen."""
        lengths = [request.computed for request in requests]
        batch = self.batch(requests, ForwardMode.DECODE, lengths)
        index, hidden = (
            torch.stack(part) for part in zip(*(self.relay[part.req_id] for part in requests), strict=True)
        )
        batch.spec_info = EagleDraftInput(torch.ones_like(index, dtype=torch.float32), index, hidden_states=hidden)
        drafted = self.drafting.draft(batch).draft_token.tolist()
        predicted, counts, features = [], [], []
        for request, drafts in zip(requests, drafted, strict=True):
            member = self.members[self.choices[request.req_id]]
            assert drafts == chain(member, request.tokens, request.features, DEPTH)
            features.append(request.features[request.computed : request.computed + DEPTH + 1])
            length, request.hits = len(request.tokens), {}
            for draft in [*drafts, None]:
                request.tokens.append(self.next_token(request))
                if request.tokens[-1] != draft:
                    break
            new = request.tokens[length:]
            self.learn(request, length)
            predicted += new + [0] * (DEPTH + 1 - len(new))  # rows of refused tokens hold anything
            counts.append(len(new))
            request.computed += len(new)
        accept_lens = torch.tensor(counts)
        result = GenerationBatchResult(
            logits_output=SimpleNamespace(hidden_states=torch.cat(features)),
            next_token_ids=torch.tensor(predicted, dtype=torch.int32),
            accept_lens=accept_lens,
            new_seq_lens=batch.seq_lens + accept_lens,
            next_draft_input=EagleDraftInput(),
        )
        self.drafting._draft_extend_for_decode(batch, result)
        return self.finish(requests, result.next_draft_input)

    def finish(self, requests: list[Request], following: EagleDraftInput) -> list[int]:
        """Compare hits and choices with the loop's, and relay what the next drafting begins with."""
        assert following.topk_p.dtype == torch.float32 and following.topk_index.dtype == torch.long
        _, hits, counts, depths = self.selector.observed[-1]
        for index, request in enumerate(requests):
            hint = (getattr(request.sampling_params, "extra_args", None) or {}).get("drafter")
            best = max(range(len(NAMES)), key=lambda arm: request.totals[arm])
            choice = NAMES.index(hint) if hint in NAMES else best
            assert int(self.drafting.choice[self.places[request.req_id]]) == choice
            assert hits[index, :, : counts[index]].T.long().tolist() == list(request.hits.values())
            self.choices[request.req_id] = choice
            self.relay[request.req_id] = following.topk_index[index], following.hidden_states[index]
        assert set(depths.tolist()) <= {0, DEPTH}
        return [self.choices[request.req_id] for request in requests]
