"""A connector with which vLLM writes finished answers, with features of all their tokens, into a stream.

vLLM's speculative method `extract_hidden_states` keeps the inputs of chosen layers in a KV cache of their own, and its
`ExampleHiddenStatesConnector` writes them to one file a request, without a bound, and on a GPU only.  This subclass
takes the rows of a finished request from that cache, so they are complete also where the prompt came from the prefix
cache or the request was preempted, and hands them to a `StreamWriter`.  We built on it and not on our `record`, because
`record` needs a pool to draft with, which a new target does not have, and has no features of cached prompts.  Both
write the same shards.

While the stream is full, finished requests keep their blocks, so vLLM runs out of cache and waits.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)
from vllm.v1.request import RequestStatus

from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer
from drafterforge.data.stream import GB, StreamWriter
from drafterforge.errors import ConfigError
from drafterforge.interop.vllm.streaming import LABELS, METHOD, PARAMETERS

FINISHED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
CLOSE_S = 5.0


@dataclass(frozen=True)
class FinishedRequest:
    """A request whose rows are still in the cache."""

    name: str
    number: int  # of its prompt in the stream; -1: the next one
    answer: Answer
    blocks: list[int]


@dataclass
class StreamMetadata(KVConnectorMetadata):
    """What the scheduler tells the worker."""

    finished: list[FinishedRequest] = field(default_factory=list)


class StreamConnector(ExampleHiddenStatesConnector):
    """Writes finished requests into a stream; only the first tensor-parallel rank writes."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        read = self._kv_transfer_config.get_from_extra_config
        self.folder, self.limit_bytes = read("stream", ""), int(read("stream_gb", 20.0) * GB)
        if not self.folder:
            raise ConfigError('kv_connector_extra_config needs a folder, such as {"stream": "FOLDER", "stream_gb": 20}')
        self.labels = read(LABELS, {})
        layers = vllm_config.speculative_config.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids
        last = vllm_config.model_config.get_total_num_hidden_layers()
        if list(layers) != sorted(set(layers)) or len(layers) < 2 or layers[-1] != last:
            raise ConfigError(
                f"{METHOD} must keep layers in rising order, then the last one's output, got {list(layers)}; "
                f"the last number must be {last}"
            )
        self.taps = list(layers[:-1])
        self.finished: list[FinishedRequest] = []  # of the scheduler
        self.writer: StreamWriter | None = None  # of the worker
        self.waiting: deque[FinishedRequest] = deque()

    # --- in the scheduler ----------------------------------------------------------------------------

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks of a request must wait for the worker."""
        # only `prepare-data` sets labels: the parameters of a server's clients are not ours
        parameters = request.kv_transfer_params if self.labels else None
        entry = finished_request(request, block_ids, (parameters or {}).get(PARAMETERS, {}))
        if entry is None:
            return False, None
        self.finished.append(entry)
        return True, None

    def build_connector_meta(self, scheduler_output: Any) -> StreamMetadata:
        """Tell the worker which requests finished."""
        metadata, self.finished = StreamMetadata(self.finished), []
        return metadata

    # --- in the worker -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Open the stream."""
        super().register_kv_caches(kv_caches)
        if self._is_tp_rank_zero:
            self.writer = StreamWriter(self.folder, self.limit_bytes, self.taps, **self.labels)

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Names of requests whose rows were taken from the cache."""
        if self.has_connector_metadata():
            self.waiting.extend(self._get_connector_metadata().finished)
        if self.writer is None:
            self.waiting.clear()
        written = set()
        while self.waiting and self.writer.has_room:
            entry = self.waiting.popleft()
            self._write(entry)
            written.add(entry.name)
        return written or None, None

    def shutdown(self) -> None:
        """Write what is finished, if there is room."""
        if self.writer is not None:
            self.writer.close(CLOSE_S)

    def _write(self, entry: FinishedRequest) -> None:
        answer, features, outputs = entry.answer, None, None
        if answer.split != "test":  # its text alone is needed
            rows = self._rows(entry.blocks, len(answer.input_ids) - 1)  # [C, taps + 1, H]
            features, outputs = rows[:, :-1].flatten(1), rows[:, -1]
        self.writer.add(entry.number, ServedAnswer(answer, features, outputs=outputs))

    def _rows(self, blocks: Sequence[int], count: int) -> torch.Tensor:
        """The kept states of a request's first tokens, on the host, [count, layers, H]."""
        cache, size = self._kv_cache, self._block_size
        first_slots = torch.tensor(blocks, dtype=torch.long)[:, None] * size
        slots = (first_slots + torch.arange(size)).flatten()[:count]
        return extract_from_kv_cache(cache, slots.to(cache.device), count).cpu()


def finished_request(request: Any, block_ids: Sequence[int], named: Mapping[str, Any]) -> FinishedRequest | None:
    """What is streamed of a request; None if it was aborted, or its target had an adapter or images.

    named: what `prepare-data` says of it, see `streaming.sampling`.
    """
    is_text = request.prompt_token_ids is not None and request.lora_request is None and not request.mm_features
    if request.status not in FINISHED or not is_text or not block_ids or named.get("skip"):
        return None
    ids, num_prompt = list(request.all_token_ids), len(request.prompt_token_ids)
    ids[-1] = named.get("last", ids[-1])
    mask = [0] * num_prompt + [1] * (len(ids) - num_prompt)
    for start, stop in named.get("answered", ()):  # earlier turns
        mask[start:stop] = [1] * (stop - start)
    answer = Answer(
        id=named.get("id") or secrets.token_hex(8),  # a client may name two of its requests alike
        domain=named.get("domain", ""),
        task=named.get("task", ""),
        split=named.get("split", "train"),
        input_ids=ids,
        loss_mask=mask,
        prompt_tokens=mask.index(1),
        answer_tokens=sum(mask),
        finished=named.get("finished", request.status == RequestStatus.FINISHED_STOPPED),
    )
    return FinishedRequest(request.request_id, named.get("number", -1), answer, list(block_ids))
