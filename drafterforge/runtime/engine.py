"""Lossless decoding of prompts with a target and, optionally, a drafter.

Autoregressive decoding is the same engine with trees of one node.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any

import torch

from drafterforge.config.runtime import MATCH, REJECTION
from drafterforge.data.chat import prompt_ids
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.proposer import Proposer
from drafterforge.drafters.registry import DEFAULT, kind_of
from drafterforge.drafters.retrieval.memory import AnswerMemory
from drafterforge.errors import ConfigError, DrafterforgeError, PromptTooLongError, quote, shorten
from drafterforge.kernels.devices import on_gpu
from drafterforge.runtime.auto_proposer import AutoProposer
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool, check_drafter
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.rejection import RejectionBatch
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.shapes import default_shape, within
from drafterforge.runtime.static_batch import StaticBatch
from drafterforge.runtime.static_pool import (
    StaticSelection,
    has_fixed_shapes,
    largest_shape,
    require_stackable,
    retrieves,
)
from drafterforge.runtime.stopping import StopRule, TextStream
from drafterforge.runtime.worth_state import save_state
from drafterforge.targets.lean import LeanBackbone
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

WARM_UP_TOKENS = 8  # of a prompt
# plain text, token ids (also in an array or a tensor), or chat messages
Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def plain_list(values: object) -> Any:
    """The list of a NumPy array or a tensor; anything else unchanged."""
    return values.tolist() if hasattr(values, "tolist") else values


def kind_name(drafter: Drafter | Pool | None) -> str:
    """The kind of a drafter; for a pool or no drafter the default kind."""
    return DEFAULT if drafter is None or isinstance(drafter, Pool) else kind_of(drafter).name


def proposer_of(drafter: Drafter | Pool, shape: TreeShape, tokenizer: object = None) -> Proposer:
    """A proposer without rows.  shape: trees that the engine asks for.  tokenizer: for a router that reads texts."""
    if not isinstance(drafter, Pool):
        proposer = kind_of(drafter).proposer(drafter)
        if proposer is not None:
            return proposer
        drafter = Pool({drafter.kind: drafter}, "static")
    return (PoolProposer if drafter.worth is None else AutoProposer)(drafter, shape, tokenizer)


class Engine:
    """Decodes prompts; the output is the target's own, only the speed is the drafter's."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | Pool | None = None,
        shape: TreeShape | None = None,
        max_batch: int = 8,
        numerics: str = "auto",
        graphs: bool | None = None,
        verify: str = MATCH,
    ) -> None:
        """shape: trees; None: default of the device and the drafter.  max_batch: most prompts that `generate` decodes
        together.  numerics, verify: see `runtime.numerics` and `runtime.verify`.

        graphs: cycles of fixed shapes, captured as CUDA graphs on a GPU; None: on a GPU, if target and drafter allow.
        """
        if isinstance(target, str | Path):
            raise DrafterforgeError(
                f"Engine takes a loaded target, got {str(target)!r}; type drafterforge.load({str(target)!r})"
            )
        if target.is_spread:
            raise ConfigError(
                "target.device_map=auto spreads the target over devices, but decoding stays on one; leave it out, or "
                "export the drafter for vLLM"
            )
        if max_batch < 1:
            raise DrafterforgeError(f"max_batch must be >= 1, got {max_batch}")
        self.target, self.drafter, self.max_batch = target, drafter, max_batch
        self.numerics = choose_numerics(numerics, target)
        self.shape = shape or default_shape(target.device, target.dtype, kind_name(drafter))
        if drafter is None:
            self.shape = TreeShape(num_tokens=1, depth=0, top_k=1)
        self.pool: Pool | None = None  # of the drafters, for cycles of fixed shapes
        fixed_shapes = drafter is None or has_fixed_shapes(self._as_pool())
        self.graphs = fixed_shapes and isinstance(target.backbone, LeanBackbone)
        if graphs and not self.graphs:
            raise DrafterforgeError(
                "graphs=True needs EAGLE-3 drafters of one architecture, retrieval, hybrids or none, "
                "a selector without reward=divergence, and a target on the lean path"
            )
        self.graphs &= on_gpu(target.device) if graphs is None else graphs
        self.verify = verify
        if verify == REJECTION:
            self._require_chain()
            self.graphs = False
        self.buffers: dict = {}  # of fixed shapes, with their graphs
        self.batches: weakref.WeakSet[Batch] = weakref.WeakSet()  # open ones
        if isinstance(drafter, Pool):
            drafter.check(target)
            drafter.idle.append(drafter.selector(self.shape))  # fails now on bad options, not at the first prompt
        elif drafter is not None:
            check_drafter(getattr(drafter, "name", "drafter"), drafter, target)

    def __repr__(self) -> str:
        shape = f"{self.shape.num_tokens}/{self.shape.depth}/{self.shape.top_k}"
        drafts = type(self.drafter).__name__ if self.drafter is not None else "no drafter"
        return f"Engine({self.target!r}, {drafts}, trees {shape}, numerics={self.numerics})"

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 256,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
        stop: Sequence[str] = (),
    ) -> list[Generation]:
        """Answers in the order of `prompts`, decoded in batches; batching never changes an answer.

        sampling: one for all prompts, or one for each.  stop: strings that end an answer and are not part of its text.
        """
        prompts = plain_list(prompts)
        if isinstance(prompts, str | int) or (prompts and isinstance(prompts[0], int | dict)):
            raise DrafterforgeError("generate takes a list of prompts; put a single prompt into a list")
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(samplings) != len(prompts):
            raise DrafterforgeError(f"{len(samplings)} samplings for {len(prompts)} prompts; give one, or one for each")
        requests = [self.read(prompt, max_new_tokens, stop, stream=False) for prompt in prompts]
        answers = []
        with torch.inference_mode():
            batch = self.open_batch()
            batch.cache.expect_rows(min(len(prompts), self.max_batch))
            for (tokens, rule), row_sampling in zip(requests, samplings, strict=True):
                answers.append(batch.admit(tokens, rule, row_sampling).answer)
                while len(batch.rows) >= self.max_batch:
                    batch.cycle(self.shape)
            while batch.rows:
                batch.cycle(self.shape)
        if self.target.tokenizer is not None and not stop:
            for answer in answers:
                answer.text = self.target.tokenizer.decode(
                    answer.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
        return answers

    def stream(
        self, prompt: Prompt, max_new_tokens: int = 256, sampling: Sampling = GREEDY, stop: Sequence[str] = ()
    ) -> Iterator[Generation]:
        """Yields the growing answer after the prefill and after every cycle; its text never shrinks."""
        tokens, rule = self.read(prompt, max_new_tokens, stop, stream=True)
        with torch.inference_mode():
            batch = self.open_batch()
            row = batch.admit(tokens, rule, sampling)
        yield row.answer
        while batch.rows:
            with torch.inference_mode():
                batch.cycle(self.shape)
            yield row.answer

    def open_batch(self) -> Batch:
        """An empty batch; the caller admits rows and runs cycles."""
        if self.graphs:
            return self._open_static_batch()
        proposer = None if self.drafter is None else proposer_of(self.drafter, self.shape, self.target.tokenizer)
        kind = RejectionBatch if self.verify == REJECTION else Batch
        batch = kind(self.target, proposer, invariant=self.numerics == "invariant")
        self.batches.add(batch)
        return batch

    def _require_chain(self) -> None:
        """Refuse rejection verification of anything but chains of a single EAGLE-3 drafter."""
        if kind_name(self.drafter) != "eagle3" or self.drafter is None or isinstance(self.drafter, Pool):
            raise ConfigError(
                "runtime.verify=rejection needs a drafter that samples: type drafter=NAME of a single EAGLE-3 drafter, "
                "or leave runtime.verify out"
            )
        if self.shape.top_k != 1 or self.shape.num_tokens <= self.shape.depth:
            raise ConfigError(
                f"runtime.verify=rejection decodes chains, but the tree is {self.shape.num_tokens}/{self.shape.depth}/"
                f"{self.shape.top_k}; type runtime.top_k=1 runtime.num_tokens={self.shape.depth + 1}"
            )

    def _as_pool(self) -> Pool:
        """The pool, or one of the only drafter."""
        if self.pool is None:
            self.pool = self.drafter
            if not isinstance(self.drafter, Pool):
                self.pool = Pool({self.drafter.kind: self.drafter}, "static")
        return self.pool

    def _open_static_batch(self) -> StaticBatch:
        invariant = self.numerics == "invariant"
        if self.drafter is None:
            return StaticBatch(self.target, None, self.buffers, self.shape, invariant)
        pool = self._as_pool()
        if not isinstance(self.drafter, Pool) and not retrieves(pool):
            return StaticBatch(self.target, pool.group(pool.names).drafters, self.buffers, self.shape, invariant)
        selection = StaticSelection(pool, self.shape, self.target.device, self.target.tokenizer)
        largest = largest_shape(pool, self.shape)
        batch = StaticBatch(self.target, selection.stack(), self.buffers, largest, invariant, selection)
        self.batches.add(batch)
        return batch

    def add_drafter(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Add a drafter to the pool; running requests may use it from their next cycle on.

        cost: seconds of its cycles, if the selector was given costs.
        """
        pool = self._pool()
        check_drafter(name, drafter, self.target)
        pool.options_with(name, cost)
        if self.graphs:
            require_stackable(pool, name, drafter)
        for batch in self.batches:
            batch.try_join(name, drafter, cost)  # refuses before anything changes
        pool.add(name, drafter, self.shape, cost, self._own_tree(drafter))
        joined = []
        try:
            with torch.inference_mode():
                for batch in self.batches:
                    batch.add_drafter(name, drafter, cost)
                    joined.append(batch)
        except Exception:  # such as a lack of memory for the features of running texts
            pool.remove(name)
            for batch in joined:
                batch.remove_drafter(name)
            raise

    def _own_tree(self, drafter: Drafter) -> TreeShape | None:
        """The default tree of a drafter that joins, if its kind has one; fixed shapes bound it."""
        if not kind_of(drafter).has_default_shape:
            return None
        tree = default_shape(self.target.device, self.target.dtype, drafter.kind)
        return within(tree, largest_shape(self._pool(), self.shape)) if self.graphs else tree

    def remove_drafter(self, name: str) -> None:
        """Remove a drafter from the pool and from running requests."""
        pool = self._pool()
        pool.options_without(name)
        for batch in self.batches:
            batch.try_leave(name)
        pool.remove(name)
        with torch.inference_mode():
            for batch in self.batches:
                batch.remove_drafter(name)

    def use_memory(self, memory: AnswerMemory) -> bool:
        """Let retrieval look up the answers of a memory, in batches opened from now on; False if no drafter retrieves.

        Never changes an answer, only what is drafted.
        """
        if self.drafter is None:
            return False
        pool, shared = self._as_pool(), {}
        for name, drafter in pool.drafters.items():
            pool.replace(name, kind_of(drafter).with_memory(drafter, memory, shared))
        if not isinstance(self.drafter, Pool):
            (self.drafter,) = pool.drafters.values()
        return bool(shared)

    def warm_up(self, advance: Callable[[int], None] = lambda count: None) -> None:
        """Capture the graphs of greedy batches of 1 to `max_batch` rows, so that no request waits for them.

        Other samplings, longer texts and trees that a scheduler chooses are captured at their first use.  advance:
        called after each number of rows.  Selectors learn nothing.  Does nothing without graphs.
        """
        if not self.graphs:
            return
        pool = self.drafter if isinstance(self.drafter, Pool) else None
        idle = [] if pool is None else copy.deepcopy(pool.idle)
        for count in range(1, self.max_batch + 1):
            with torch.inference_mode():
                batch = self.open_batch()
                for _ in range(count):
                    batch.admit([0] * WARM_UP_TOKENS, StopRule(frozenset(), 2, "length"))
                batch.cycle(self.shape)
                if batch.rows:
                    batch.keep([])
            advance(1)
        if pool is not None:
            pool.idle[:] = idle

    def save_state(self) -> None:
        """Save what `drafter=auto` has learned for engines opened later; ArtifactError if it cannot be written.

        Must not run beside a cycle of another thread. Does nothing for engines that were opened without `carry`.
        """
        worth = self.drafter.worth if isinstance(self.drafter, Pool) else None
        if worth is not None and worth.path is not None:
            save_state(worth, worth.path)

    def _pool(self) -> Pool:
        if not isinstance(self.drafter, Pool):
            raise DrafterforgeError("this engine decodes with one drafter; give it a Pool to add drafters to")
        return self.drafter

    def read(
        self, prompt: Prompt, max_new_tokens: int, stop: Sequence[str] = (), stream: bool = False
    ) -> tuple[list[int], StopRule]:
        """Token ids of a prompt, and the rule that ends its answer.  stream: decode its text token by token."""
        tokens = self._ids(prompt)
        room = self.target.max_positions - len(tokens)
        if not tokens or room < 1:
            raise (PromptTooLongError if tokens else DrafterforgeError)(
                f"the prompt has {len(tokens)} tokens; this target reads 1 to {self.target.max_positions - 1}"
            )
        if not isinstance(max_new_tokens, Integral):
            raise DrafterforgeError(f"max_new_tokens must be a whole number, got {quote(max_new_tokens)}")
        if max_new_tokens < 1:
            raise DrafterforgeError(f"max_new_tokens must be >= 1, got {max_new_tokens}")
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        tokenizer = self.target.tokenizer
        text = TextStream(tokenizer) if tokenizer is not None and (stream or stop) else None
        reason = "length" if max_new_tokens <= room else "context"
        return tokens, StopRule(self.target.eos_ids, min(max_new_tokens, room), reason, stop, text)

    def _ids(self, prompt: Prompt) -> list[int]:
        prompt = plain_list(prompt)
        if isinstance(prompt, str):
            tokens = self.target.tokenizer(prompt).input_ids
        elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], dict):
            tokens = prompt_ids(self.target.tokenizer, list(prompt))
        else:
            try:
                tokens = [index(token) for token in prompt]
            except TypeError:
                raise DrafterforgeError(
                    f"a prompt is text, a list of messages or of token ids, which are integers; got {quote(prompt)}"
                ) from None
        vocab_size = self.target.backbone.embedding.shape[0]
        if wrong := [token for token in tokens if not 0 <= token < vocab_size]:
            raise DrafterforgeError(f"token id {shorten(wrong[0])} is not one of this target's {vocab_size}")
        return tokens
