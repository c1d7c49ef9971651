"""Prompt features of a router: states of the target, which prefill computes anyway, or of a small text encoder.

Axes: P prompt positions, H hidden of the target, F features, T tokens, E width of the encoder.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterforge.artifacts.locate import is_folder
from drafterforge.data.chat import prompt_ids
from drafterforge.errors import ArtifactError, shorten

POOLING = 1  # version of `prompt_features`, raised when its values change
MAX_TEXT_TOKENS = 512  # most tokens that an encoder reads
_EPS = 1e-6
_MARKS = ("REQUEST", "ANSWER", "FURTHER")


def prompt_features(features: Tensor, hidden_size: int) -> Tensor:
    """The last tap of the last position at unit RMS, [F] float32 with F = H, of a prompt's features [P, 3H].

    Features [P, B, 3H] of B prompts give [B, F].  hidden_size: of the target, H.

    At the last position the target is about to answer, so its state encodes the kind of text that comes next.  A mean
    over the prompt does as well on single requests, but in a conversation it encodes the topic of the longest turn.
    """
    last = features[-1, ..., -hidden_size:].float()
    return last * torch.rsqrt(last.square().mean(dim=-1, keepdim=True) + _EPS)


def request_text(messages: Sequence[dict[str, str]]) -> str:
    """The text that an encoder reads of a conversation: all messages of the user."""
    return "\n".join(message["content"] for message in messages if message["role"] == "user")


def request_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text that an encoder reads of a prompt's token ids: the user's messages, as `request_text` has them.

    A prompt without a chat template is read as it is, without special tokens.
    """
    text = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
    begin, end = _user_frame(tokenizer)
    if begin and end and begin in text:
        parts = [part.partition(end)[0] for part in text.split(begin)[1:]]
        text = "\n".join(part.strip() for part in parts)
    for special in tokenizer.all_special_tokens:
        text = text.replace(str(special), "\n")
    return text.strip()


def _user_frame(tokenizer: Any) -> tuple[str, str]:
    """What a chat template writes before and after every message of the user.

    What comes only before the first one, such as a system message or the date, is no part of it.
    """
    first, answer, second = _MARKS
    talk = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]
    text = tokenizer.decode(prompt_ids(tokenizer, talk), clean_up_tokenization_spaces=False)
    before, _, rest = text.partition(first)
    inside, _, rest = rest.partition(answer)
    between, _, after = rest.partition(second)
    return _shared_start(before[::-1], between[::-1])[::-1], _shared_start(inside, after)


def _shared_start(first: str, second: str) -> str:
    """The longest text that both begin with."""
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class TextEncoder:
    """A small transformers encoder; it maps a text to the mean of its last hidden states, [E]."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any, source: str) -> None:
        """source: folder or hub id of the encoder."""
        self.model, self.tokenizer, self.source = model.eval().requires_grad_(False), tokenizer, source
        self.limit = min(MAX_TEXT_TOKENS, getattr(model.config, "max_position_embeddings", MAX_TEXT_TOKENS))

    @classmethod
    def open(cls, source: str, download: bool = True) -> TextEncoder:
        """Open the encoder of a folder or a hub id; only safetensors weights, no remote code.

        download: from the hub, if it is not on this machine.
        """
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        from drafterforge.targets.stored import read_config

        is_path = Path(source).is_absolute() or source.startswith((".", "~"))
        folder = Path(source).expanduser() if is_folder(source) else None
        if folder is None and not is_path and not download:
            folder = _cached(source)
        options = {"local_files_only": folder is not None, "trust_remote_code": False}
        path = source if folder is None else str(folder)
        if folder is None and is_path:
            raise ArtifactError(
                f"router.encoder={shorten(source, 300)} is no folder; it must hold config.json and *.safetensors"
            )
        try:
            if folder is not None:
                config = read_config(folder)
            else:
                config = AutoConfig.from_pretrained(path, **options)
                config._attn_implementation = None  # let transformers choose; a config must not name a kernel
            model, loading_info = AutoModel.from_pretrained(
                path, config=config, use_safetensors=True, output_loading_info=True, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
        except Exception as error:  # the libraries involved raise many types
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ArtifactError(
                f"router.encoder={shorten(source)} cannot be loaded as a text encoder ({reason})"
            ) from error
        # a model trained without a pooler gets a random one, which is not used
        if missing := sorted(name for name in loading_info["missing_keys"] if not name.startswith("pooler.")):
            raise ArtifactError(
                f"router.encoder={source} has no weights for {missing[0]}; it must hold all weights of an encoder"
            )
        return cls(model.float(), tokenizer, source)

    @property
    def width(self) -> int:
        """Width of the encoder, E."""
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
        """Mean state over the text's tokens, [E] float32; tokens beyond the encoder's window are cut off."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=self.limit)
        inputs = inputs.to(self.model.device)
        states = self.model(**inputs).last_hidden_state[0].float()  # [T, E]
        return states.mean(dim=0).clone()


def _cached(hub_id: str) -> Path:
    """The folder of an encoder in the hub's cache; transformers would ask the network even of cached files."""
    from huggingface_hub import try_to_load_from_cache

    path = None
    with contextlib.suppress(ValueError):  # no hub id
        path = try_to_load_from_cache(hub_id, "config.json")
    if not isinstance(path, str):
        raise ArtifactError(
            f"router.encoder={shorten(hub_id)} is not on this machine; wanted a folder with config.json and "
            f"*.safetensors, or a hub id that was downloaded before: type `hf download {shorten(hub_id)}`"
        )
    return Path(path).parent
