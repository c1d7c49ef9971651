"""What a router reads of a prompt: the target's own states, which prefill computes anyway, or a small text encoder's.

Axes: P prompt positions, H hidden of the target, F features, T tokens, E width of the encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterforge.data.chat import prompt_ids
from drafterforge.errors import ArtifactError

POOLING = 1  # raised when `prompt_features` gives other numbers for the same prompt
NUM_TAPS = 3
MAX_TEXT_TOKENS = 512  # of a text that an encoder reads
_EPS = 1e-6
_MARK = "REQUEST"


def prompt_features(features: Tensor) -> Tensor:
    """The high tap of the last position at unit RMS, [F] float32 with F = H, of a prompt's features [P, 3H].

    There the target is about to answer, so that state tells which kind of text comes next.  Means over the prompt do as
    well on single requests, but in a conversation they tell the topic of its longest turn, not of the next answer.
    """
    last = features[-1].float().unflatten(-1, (NUM_TAPS, -1))[-1]  # [H]
    return last * torch.rsqrt(last.square().mean() + _EPS)


def request_text(messages: Sequence[dict[str, str]]) -> str:
    """What a text encoder reads of a conversation: all that the user said."""
    return "\n".join(message["content"] for message in messages if message["role"] == "user")


def request_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The same of a prompt's token ids, as the runtime has them: without what the chat template puts around a message.

    Of a conversation of several turns the answers stay in it.
    """
    text, frame = (
        tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        for ids in (tokens, prompt_ids(tokenizer, [{"role": "user", "content": _MARK}]))
    )
    before, _, after = frame.partition(_MARK)
    if text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after):
        text = text[len(before) : len(text) - len(after)]
    for special in tokenizer.all_special_tokens:
        text = text.replace(str(special), "\n")
    return text.strip()


class TextEncoder:
    """A small transformers encoder; a text becomes the mean of its last states, [E]."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any, source: str) -> None:
        """source: the folder or hub id that it came from."""
        self.model, self.tokenizer, self.source = model.eval().requires_grad_(False), tokenizer, source
        self.limit = min(MAX_TEXT_TOKENS, getattr(model.config, "max_position_embeddings", MAX_TEXT_TOKENS))

    @classmethod
    def open(cls, source: str) -> TextEncoder:
        """The encoder in a folder, or of a hub id: safetensors weights, and no code of its own."""
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        from drafterforge.targets.stored import read_config

        options = {"local_files_only": Path(source).expanduser().is_dir(), "trust_remote_code": False}
        source = str(Path(source).expanduser()) if options["local_files_only"] else source
        if not options["local_files_only"] and (Path(source).is_absolute() or source.startswith((".", "~"))):
            raise ArtifactError(f"router.encoder={source} is no folder; wanted one with config.json and *.safetensors")
        try:
            if options["local_files_only"]:
                config = read_config(Path(source))
            else:
                config = AutoConfig.from_pretrained(source, **options)
                config._attn_implementation = None  # what transformers chooses, never a kernel that a config names
            model, found = AutoModel.from_pretrained(
                source, config=config, use_safetensors=True, output_loading_info=True, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
        except Exception as error:  # safetensors, json, tokenizers, the hub and transformers each have their own
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ArtifactError(f"router.encoder={source} cannot be loaded as a text encoder ({reason})") from error
        # models trained without a pooler get a random one, which nobody reads here
        if missing := sorted(name for name in found["missing_keys"] if not name.startswith("pooler.")):
            raise ArtifactError(f"router.encoder={source} lacks {missing[0]}; wanted the whole weights of an encoder")
        return cls(model.float(), tokenizer, source)

    @property
    def width(self) -> int:
        """E."""
        return self.model.config.hidden_size

    @property
    def fingerprint(self) -> str:
        """32 hex digits of the weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            if not name.startswith("pooler."):
                digest.update(name.encode() + tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    @torch.inference_mode()
    def __call__(self, text: str) -> Tensor:
        """Mean over the text's tokens, [E] float32; what goes beyond the encoder's window is not read."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=self.limit)
        inputs = inputs.to(self.model.device)
        states = self.model(**inputs).last_hidden_state[0].float()  # [T, E]
        return states.mean(dim=0).clone()
