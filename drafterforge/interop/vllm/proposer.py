"""Drafts in vLLM's V1 runner with a pool: all drafters read, the selector learns and chooses, the chosen one drafts.

vLLM's own drafting loop stays.  The first pass of a cycle reads the committed rows; sampling from it is where this
class judges the drafters, lets the selector learn, and chooses; later passes draft with the choice.
Axes: N drafters, B requests, R flattened rows, H hidden, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.spec_decode.eagle import EagleProposer

from drafterforge.interop.vllm.judging import Guesses, newest_rows
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
from drafterforge.interop.vllm.requests import RequestSlots
from drafterforge.interop.vllm.settings import PoolServing
from drafterforge.selectors.batched import batched_selector


@dataclass
class Cycle:
    """The rows of the requests of a cycle."""

    slots: Tensor  # [B]
    starts: Tensor  # first flattened row of each request, [B]
    ends: Tensor  # its newest committed row, [B]
    depths: Tensor  # drafted tokens that were verified with it, [B]
    selected: bool = False


class PoolProposer(EagleProposer):
    """Replaces `EagleProposer` in vLLM; for drafters that are no pool it is the same."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        self.is_pool = ARCHITECTURE in (self.draft_model_config.hf_config.architectures or [])
        if not self.is_pool:
            return
        self.runner = runner
        self.serving = PoolServing.of(vllm_config)
        names = self.serving.names
        self.hidden_size *= len(names)
        self.hidden_states = torch.zeros((self.max_num_tokens, self.hidden_size), dtype=self.dtype, device=device)
        self.depth = self.num_speculative_tokens
        num_slots = 2 * self.max_batch_size  # preempted requests keep their state
        self.requests = RequestSlots(num_slots)
        self.spare = torch.tensor(num_slots, device=device)  # slot of rows that learn nothing
        self.judging = Guesses.empty(num_slots + 1, len(names), device)
        self.selector = self.serving.selector(self.depth, num_slots + 1, device)
        self.allowed = torch.ones((num_slots + 1, len(names)), dtype=torch.bool, device=device)
        self.cycle: Cycle | None = None
        self._follow_endings()

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft model; a pool's drafters are read once they share the target's embedding."""
        super().load_model(target_model)
        if self.is_pool:
            self.model.load_drafters()

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
        """Drafted tokens, [B, K]."""
        if self.is_pool:
            bounds = common_attn_metadata.query_start_loc.long()
            ends = bounds[1:] - 1 if token_indices_to_sample is None else token_indices_to_sample.long()
            depths = (bounds[1:] - bounds[:-1] - 1).clamp(max=self.depth)
            self.cycle = Cycle(self._schedule(len(ends)), bounds[:-1], ends, depths)
            self.model.read()
        return super().propose(
            num_speculative_tokens=num_speculative_tokens,
            target_token_ids=target_token_ids,
            target_positions=target_positions,
            target_hidden_states=target_hidden_states,
            next_token_ids=next_token_ids,
            token_indices_to_sample=token_indices_to_sample,
            common_attn_metadata=common_attn_metadata,
            sampling_metadata=sampling_metadata,
            **rest,
        )

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
        guesses = self.model.guesses(window.rows.flatten()).unflatten(1, window.rows.shape)
        inputs, positions = self.input_ids[window.rows].long(), self.positions[window.rows] + 1
        judged = self.judging.judge(slots, window, guesses, inputs, positions)
        self.selector.drop(torch.where(judged.gaps, slots, self.spare))
        self.selector.observe(slots, judged.hits, judged.counts, cycle.depths)
        choice = self.selector.choose(slots, self.allowed[slots])
        self.model.draft_with(choice)
        return guesses[:, :, -1].gather(0, choice[None])[0]

    def _schedule(self, count: int) -> Tensor:
        """Slots [B] of the batch's requests; those that begin start blank."""
        batch = self.runner.input_batch
        names = batch.req_ids[:count]
        numbers, begun = self.requests.schedule(names)
        slots = torch.tensor(numbers, device=self.device)
        if begun:
            rows = [names.index(name) for name in begun]
            new = slots[torch.tensor(rows, device=self.device)]
            lengths = torch.tensor([int(batch.num_prompt_tokens[row]) for row in rows], device=self.device)
            self.judging.begin(new, lengths)
            self.selector.begin(new)
            hints = [self.serving.allowed(self.runner.requests[name].sampling_params) for name in begun]
            self.allowed.index_copy_(0, new, torch.tensor(hints, device=self.device))
        return slots

    def _follow_endings(self) -> None:
        """Free the state of requests as soon as vLLM removes them."""
        update_states = self.runner._update_states

        def update(scheduler_output: Any) -> Any:
            if ended := self.requests.end(scheduler_output.finished_req_ids):
                self.selector.end(torch.tensor(ended, device=self.device))
            return update_states(scheduler_output)

        self.runner._update_states = update
