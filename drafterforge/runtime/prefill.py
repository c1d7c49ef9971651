"""Reading a prompt in chunks of fixed size, so that the rows that decode wait for one chunk and not for a prompt.

The boundaries of the chunks depend on the prompt alone: a busy server computes the bits of an idle one.
Axes: P prompt tokens, T tokens of a chunk, H hidden of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafters.proposer import PromptReader
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.targets.load import Target


class Prefill:
    """A prompt that is being read by the target, and behind it by the drafters."""

    def __init__(
        self,
        target: Target,
        prompt: list[int],
        chunk: int,
        reader: PromptReader | None,
        outputs: RowOutputs | None = None,
    ) -> None:
        """reader: of the drafters; None without any.  outputs: where the target's outputs are recorded."""
        self.target, self.chunk, self.reader, self.outputs = target, chunk, reader, outputs
        self.tokens = torch.tensor(prompt, device=target.device)
        self.num_read = 0
        self.state: Tensor | None = None  # final normed state of the newest token, [1, H]
        self.parts: list[Tensor] = []  # features [T, 3H] of every chunk

    @property
    def is_read(self) -> bool:
        """Whether the target has read all of the prompt."""
        return self.num_read == len(self.tokens)

    @property
    def features(self) -> Tensor:
        """Features of the tokens read, [P, 3H]."""
        return torch.cat(self.parts)

    def read(self, cache: KeyValueCache) -> None:
        """Let the target read the next chunk.  cache: of this row, with room for the prompt."""
        start, end = self.num_read, min(self.num_read + self.chunk, len(self.tokens))
        slots = torch.arange(start, end, device=self.tokens.device)
        mask = None
        if start:
            allowed = torch.arange(end, device=slots.device) <= slots[:, None]
            mask = additive(allowed, self.target.compute_dtype)[None]
        cache.set_slots(start, end - start)
        states, features = self.target.forward(self.tokens[None, start:end], slots[None], cache, mask)
        self.state, self.num_read = states[:, -1], end
        self.parts.append(features[0])
        if self.outputs is not None:
            self.outputs.add(features[0], states[0])

    def follow(self, root: Tensor | None = None) -> None:
        """Let the drafters read the chunk that the target has read.  root: [1], behind the last chunk."""
        if self.reader is not None:
            self.reader.read(self.text(root), self.parts[-1])

    def text(self, root: Tensor | None = None) -> Tensor:
        """The tokens read and the one behind them, [E + 1]."""
        return self.tokens[: self.num_read + 1] if root is None else torch.cat((self.tokens, root))

    def read_again(self, reader: PromptReader | None) -> None:
        """Let other drafters read what was read so far, when the drafters of a pool change."""
        if reader is not None and self.parts:
            reader.read(self.text(), self.features)
