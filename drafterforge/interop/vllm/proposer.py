"""Drafts in vLLM's V1 runner with a pool: all drafters read, the selector learns and chooses, the chosen one drafts.

vLLM's own drafting loop stays.  The first pass of a cycle reads the committed rows, or the newest ones of a prompt on a
CPU; sampling from it is where this class judges the drafters, lets the selector learn, and chooses; later passes draft
with the choice.
Axes: N drafters, B requests, R flattened rows, H hidden, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.compilation.backends import set_model_tag
from vllm.config import CUDAGraphMode, VllmConfig, replace
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.model_loader import get_model
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.spec_decode.eagle import EagleProposer

from drafterforge.interop.vllm.capture import Recorder
from drafterforge.interop.vllm.draft_length import DraftLength
from drafterforge.interop.vllm.judging import Window, newest_rows
from drafterforge.interop.vllm.lookups import Lookups
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
from drafterforge.interop.vllm.reading import DeferredRows, Rows
from drafterforge.interop.vllm.requests import RequestSlots
from drafterforge.interop.vllm.selection import PoolSelection
from drafterforge.interop.vllm.settings import PoolServing


@dataclass
class Cycle:
    """The rows of the requests of a cycle."""

    slots: Tensor  # [B]
    rows: Rows
    starts: Tensor  # first row of each request, [B]
    ends: Tensor  # its newest committed row, [B]
    depths: Tensor  # drafted tokens that were verified with it, [B]
    length: int  # tokens to draft
    features: Tensor | None = None  # of the target at the newest rows, [B, 3H], if prompts end in this cycle
    selected: bool = False
    looked_up: list[list[int] | None] | None = None  # drafted tokens of each request whose drafter looks up


class PoolProposer(EagleProposer):
    """Replaces `EagleProposer` in vLLM; for drafters that are no pool it is the same."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        self.is_pool = ARCHITECTURE in (self.draft_model_config.hf_config.architectures or [])
        if not self.is_pool:
            return
        self.runner = runner
        self.serving = serving = PoolServing.of(vllm_config)
        count = len(serving.stacked)
        self.hidden_size *= count
        self.hidden_states = torch.zeros((self.max_num_tokens, self.hidden_size), dtype=self.dtype, device=device)
        self.depth = self.num_speculative_tokens
        self.on_host = device.type == "cpu" and not runner.use_async_scheduling  # tokens and lengths may depend on them
        num_arms = count + (len(serving.lookups) if self.on_host else 0)
        num_slots = 2 * self.max_batch_size  # preempted requests keep their state
        self.requests = RequestSlots(num_slots)
        self.selection = PoolSelection(serving, num_arms, self.depth, num_slots, device)
        if get_tensor_model_parallel_rank():
            self.selection.meter = None  # the first rank counts for all
        ranks = get_tensor_model_parallel_world_size() * vllm_config.parallel_config.data_parallel_size
        alone = ranks == 1  # ranks would measure different seconds
        self.length = DraftLength(self.depth) if self.on_host and serving.adaptive and alone else None
        self.deferred = DeferredRows(num_slots, self.max_num_tokens) if self.length else None
        self.lookups: Lookups | None = None
        self.cycle: Cycle | None = None
        self.looked_up: set[int] = set()  # slots whose last chains were looked up
        # Start, length and batch size of the last cycle; None if it read prompts, whose seconds are no length's.
        self.began: tuple[float, int, int] | None = None
        self.recorder, self.states = self._recorder(), None  # states: of the target at the rows of a cycle, [R, H]
        self._follow_endings()

    def _get_model(self) -> torch.nn.Module:
        """The draft model; a pool's folder has no weights for vLLM's loader."""
        if not self.is_pool:
            return super()._get_model()
        config = self._create_draft_vllm_config()
        with set_model_tag("eagle_head"):
            without_weights = replace(config.load_config, load_format="dummy")
            return get_model(vllm_config=config, model_config=self.draft_model_config, load_config=without_weights)

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft model; a pool's drafters are read once they share the target's embedding."""
        super().load_model(target_model)
        if self.is_pool:
            self.model.load_drafters()
            if self.on_host and self.serving.lookups:
                self.lookups = Lookups(self.model.lookups(self.serving.lookups), self.depth)

    def initialize_cudagraph_keys(self, cudagraph_mode: CUDAGraphMode) -> None:
        """A pool's passes run eagerly."""
        super().initialize_cudagraph_keys(CUDAGraphMode.NONE if self.is_pool else cudagraph_mode)

    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        token_indices_to_sample: Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        **rest: Any,
    ) -> Tensor:
        """Drafted tokens, [B, K]; of fewer than K tokens as vLLM wants them, [B, d] or [B][d]."""
        rest |= {
            "target_token_ids": target_token_ids,
            "target_positions": target_positions,
            "target_hidden_states": target_hidden_states,
            "next_token_ids": next_token_ids,
            "token_indices_to_sample": token_indices_to_sample,
            "common_attn_metadata": common_attn_metadata,
            "sampling_metadata": sampling_metadata,
        }
        if not self.is_pool:
            return super().propose(num_speculative_tokens=num_speculative_tokens, **rest)
        bounds = common_attn_metadata.query_start_loc.long()
        starts, counts = bounds[:-1], bounds[1:] - bounds[:-1]
        ends = bounds[1:] - 1 if token_indices_to_sample is None else token_indices_to_sample.long()
        tokens = target_token_ids.roll(-1).index_copy(0, ends, next_token_ids.to(target_token_ids.dtype))
        rows = Rows(tokens, target_positions, target_hidden_states, counts)
        slots = self._schedule(len(ends))
        length = self._draft_length(num_speculative_tokens, counts, ends - starts)
        depths = torch.where(counts <= self.depth + 1, counts - 1, 0)  # rows that are read again verify nothing
        self.cycle = Cycle(slots, rows, starts, ends, depths, length)
        if self.selection.advice and self._reads_prompts(len(ends)):
            self.cycle.features = target_hidden_states[ends]
        if self.recorder:
            parts = target_token_ids, next_token_ids, target_positions, target_hidden_states, self.states[: len(tokens)]
            self.recorder.cycle(self.requests.batch, starts, ends, *parts)
        if self.on_host:
            self._set_chunk_ends(rows, ends)
            return self._finish(self.cycle, self._propose_on_host(self.cycle, common_attn_metadata, sampling_metadata))
        self.model.read()
        drafted = super().propose(num_speculative_tokens=length, **rest)
        return self._finish(self.cycle, drafted)

    def _propose_on_host(self, cycle: Cycle, batch: Any, sampling_metadata: Any) -> Tensor:
        """Drafted tokens, [B, d].  batch: vLLM's metadata for attention in the batch."""
        rows, window = cycle.rows.until(cycle.ends), self.depth + 1  # window: rows whose outputs are used
        decoding = int(rows.counts.max()) <= window
        if self.deferred and cycle.length == 0 and decoding and self.deferred.has_room(rows):
            self.deferred.defer(cycle.slots, rows)
        else:
            if self.deferred and (late := self.deferred.take(cycle.slots, rows.positions[rows.starts])):
                self._catch_up(late, batch)
            if cycle.length == 0 or not decoding:
                self._write_keys(rows, batch)
        cycle.rows = rows = rows.newest(window)
        cycle.starts, cycle.ends = rows.starts, rows.ends
        if cycle.length == 0:
            return rows.tokens.new_zeros(len(cycle.slots), 0)
        self.model.read()
        return super().propose(
            num_speculative_tokens=cycle.length,
            target_token_ids=rows.tokens.roll(1),  # vLLM shifts them back
            target_positions=rows.positions,
            target_hidden_states=rows.features,
            next_token_ids=rows.tokens[rows.ends],
            token_indices_to_sample=None,
            common_attn_metadata=rows.metadata(batch, self.block_size),
            sampling_metadata=sampling_metadata,
        )

    def _set_chunk_ends(self, rows: Rows, ends: Tensor) -> None:
        """Set the token after each chunk of a prompt that goes on; vLLM has another token there."""
        batch = self.runner.input_batch
        after = (rows.positions[ends] + 1).numpy()
        unfinished = (after < batch.num_prompt_tokens[: len(ends)]).nonzero()[0]
        if len(unfinished):
            tokens = torch.from_numpy(batch.token_ids_cpu[unfinished, after[unfinished]])
            rows.tokens[ends[torch.from_numpy(unfinished)]] = tokens.to(rows.tokens.dtype)

    def _catch_up(self, rows: Rows, batch: Any) -> None:
        """Read deferred rows, in seconds that are no length's."""
        began = time.perf_counter()
        self._write_keys(rows, batch)
        if self.began:
            start, *rest = self.began
            self.began = (start + time.perf_counter() - began, *rest)

    def _write_keys(self, rows: Rows, batch: Any) -> None:
        """Write the rows' keys into all drafters' caches."""
        slots = rows.cache_slots(batch.block_table_tensor, self.block_size)
        self.model.write_keys(rows.tokens, rows.positions, rows.features, slots)

    def _draft_length(self, most: int, counts: Tensor, accepted: Tensor) -> int:
        """The number of tokens to draft.  counts, accepted: rows and accepted tokens of each request, [B]."""
        if self.length is None:
            return most
        now, batch = time.perf_counter(), len(counts)
        decoding = int(counts.max()) <= self.depth + 1  # no prompt was read
        if self.began and decoding and self.began[2] == batch:
            pairs = list(zip(self.requests.batch_slots, accepted.tolist(), strict=True))
            looked_up = [count for slot, count in pairs if slot in self.looked_up]
            drafted = [count for slot, count in pairs if slot not in self.looked_up]
            self.length.observe(self.began[1], now - self.began[0], drafted, looked_up)
        length = min(self.length.choose(batch), most)
        self.began = (now, length, batch) if decoding else None
        return length

    def _finish(self, cycle: Cycle, drafted: Tensor) -> Tensor | list[list[int]]:
        """The drafted tokens [B, d], with those that were looked up."""
        if not cycle.selected:  # nobody guessed
            self._select_lookups(cycle)
        if cycle.looked_up is None:
            self.looked_up = set()
            return drafted
        rows = list(zip(self.requests.batch_slots, drafted.tolist(), cycle.looked_up, strict=True))
        self.looked_up = {slot for slot, _, chain in rows if chain is not None}
        return [row if chain is None else chain for _, row, chain in rows]

    def _select_lookups(self, cycle: Cycle) -> None:
        """Take looked-up chains, in a cycle in which the model's drafters draft nothing."""
        window = newest_rows(cycle.starts, cycle.ends, self.depth + 1)
        if cycle.features is not None:
            self.selection.advise(cycle.slots, self._tokens(window)[1][:, -1], cycle.features)
        if not self.lookups:
            self.selection.guesses.forget(cycle.slots)
            return
        _, worths = self._read_texts(window)
        _, positions = self._tokens(window)
        in_answer = positions[:, 0] > self.selection.prompts[cycle.slots]
        accepted = cycle.ends - cycle.starts
        accepted = torch.where(in_answer & (cycle.depths > 0), accepted, -1)
        choice = self.selection.select_lookup(cycle.slots, worths[:, :, -1], accepted, cycle.depths)
        self._look_up(cycle, choice)

    def _sample_draft_tokens(self, hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, Tensor | None]:
        """The next drafted token of each request, [B]."""
        if not self.is_pool:
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)
        if self.cycle.selected:
            return self.model.next_tokens(hidden_states), None
        self.cycle.selected = True
        return self._select(self.cycle), None

    def _select(self, cycle: Cycle) -> Tensor:
        """Judge the drafters, learn and choose; returns the first drafted token of each request, [B]."""
        slots, window = cycle.slots, newest_rows(cycle.starts, cycle.ends, self.depth + 1)
        guesses, worths = self._guesses(window)
        inputs, positions = self._tokens(window)
        if self.lookups:
            parts = zip((guesses, worths), self._read_texts(window), strict=True)
            guesses, worths = (torch.cat(part) for part in parts)
        complete = cycle.length == self.depth
        rest = inputs, positions, cycle.depths, cycle.features, worths, complete
        choice = self.selection.select(slots, window, guesses, *rest)
        if self.lookups:
            choice = self._look_up(cycle, choice)
        self.model.draft_with(choice)
        return guesses[:, :, -1].gather(0, choice[None])[0]

    def _guesses(self, window: Window) -> tuple[Tensor, Tensor | None]:
        """What the drafters that vLLM runs guess after each row, [N, B, P], and where text is looked up how likely."""
        rows, places = window.rows.flatten(), None
        if self.on_host:  # rows that pad a window are no work
            rows, places = rows.unique(return_inverse=True)
        parts = self.model.guesses(rows, weigh=self.lookups is not None)
        if places is not None:
            parts = [None if part is None else part[:, places] for part in parts]
        return tuple(None if part is None else part.unflatten(1, window.rows.shape) for part in parts)

    def _tokens(self, window: Window) -> tuple[Tensor, Tensor]:
        """Token of each row of a window, and its position in the text, [B, P] each."""
        rows = self.cycle.rows
        return rows.tokens[window.rows].long(), rows.positions[window.rows] + 1

    def _read_texts(self, window: Window) -> tuple[Tensor, Tensor]:
        """Let the drafters that look up read the new tokens; returns their guesses and worths, [L, B, P] each."""
        tokens, positions = self._tokens(window)
        positions = torch.where(window.valid, positions, -1)
        return self.lookups.read(self.requests.batch_slots, tokens.tolist(), positions.tolist())

    def _look_up(self, cycle: Cycle, choice: Tensor) -> Tensor:
        """Take the chains of requests whose drafter looks up; returns drafters that vLLM runs, [B]."""
        count = len(self.serving.stacked)
        arms = choice.tolist()
        if max(arms) >= count:
            chains = zip(arms, self.lookups.chains, strict=True)
            cycle.looked_up = [parts[arm - count] if arm >= count else None for arm, parts in chains]
            self.model.idle = min(arms) >= count
        return torch.where(choice < count, choice, 0)

    def _schedule(self, count: int) -> Tensor:
        """Slots [B] of the batch's requests; those that begin start blank."""
        batch = self.runner.input_batch
        names = batch.req_ids[:count]
        numbers, begun = self.requests.schedule(names)
        slots = self._tensor(numbers)
        if begun:
            rows = [names.index(name) for name in begun]
            new = slots[self._tensor(rows)]
            lengths = self._tensor([int(batch.num_prompt_tokens[row]) for row in rows])
            states = [self.runner.requests[name] for name in begun]
            hints = self.selection.hints([state.sampling_params for state in states])
            after_idle = len(begun) == len(self.requests.slots)
            self.selection.begin(new, lengths, self._tensor(hints), after_idle)
            if self.deferred:
                self.deferred.forget(new)
            if self.lookups:
                for slot, state in zip(new.tolist(), states, strict=True):
                    self.lookups.begin(slot, state.prompt_token_ids)
            if self.recorder:
                for name, state in zip(begun, states, strict=True):
                    self._record(name, state)
        return slots

    def _tensor(self, values: list[Any]) -> Tensor:
        """A tensor on the device, to which it is copied without waiting."""
        return async_tensor_h2d(values, device=self.device)

    def _reads_prompts(self, count: int) -> bool:
        """Whether prompts are read in this cycle, of `count` requests."""
        batch = self.runner.input_batch
        return bool((batch.num_computed_tokens_cpu[:count] < batch.num_prompt_tokens[:count]).any())

    def _recorder(self) -> Recorder | None:
        """The recorder of served traffic, on the first rank, if the settings name a folder."""
        if self.serving.record is None or get_tensor_model_parallel_rank():
            return None
        draft = self.runner.propose_draft_token_ids

        def propose_draft_token_ids(
            scheduler_output: Any, sampled: Any, sampling_metadata: Any, hidden_states: Tensor, *rest: Any, **named: Any
        ) -> Any:
            self.states = hidden_states
            return draft(scheduler_output, sampled, sampling_metadata, hidden_states, *rest, **named)

        self.runner.propose_draft_token_ids = propose_draft_token_ids
        return Recorder(self.serving.record, self.device)

    def _record(self, name: str, state: Any) -> None:
        """Record a request that begins, unless its target has an adapter or it came without token ids."""
        params = state.sampling_params
        if state.lora_request is not None or not state.prompt_token_ids or params is None:
            return
        longest = self.max_model_len - len(state.prompt_token_ids)
        limit = longest if params.max_tokens is None else min(params.max_tokens, longest)
        self.recorder.begin(name, state.prompt_token_ids, limit, params.all_stop_token_ids)

    def _follow_endings(self) -> None:
        """Free the state of requests as soon as vLLM removes them."""
        update_states = self.runner._update_states

        def update(scheduler_output: Any) -> Any:
            if self.recorder:
                self.recorder.end(scheduler_output.finished_req_ids)
            if ended := self.requests.end(sorted(scheduler_output.finished_req_ids)):
                self.selection.end(self._tensor(ended))
                if self.deferred:
                    self.deferred.forget(self._tensor(ended))
                if self.lookups:
                    self.lookups.end(ended)
            return update_states(scheduler_output)

        self.runner._update_states = update
