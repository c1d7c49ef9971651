"""Byte-level tokenizers with chat templates of the kinds that targets have, and a tiny target on disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.models import tiny_model

TINY = SimpleNamespace(name="tiny", fingerprint="f00d")  # what artifacts say of a target

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# strips the reasoning from every turn but the last, as thinking models do
THINKING = (
    "{% for m in messages %}{% set c = m['content'] %}"
    "{% if not loop.last and '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + c + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """One token a byte, but '\\n\\n' is one too, so that tokens can cross the edge of a turn."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab["ĊĊ"] = len(vocab)
    core = Tokenizer(models.BPE(vocab, [("Ċ", "Ċ")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    return tokenizer


def save_tiny_target(folder: Path, family: str = "llama", **changes: object) -> Path:
    """A Hugging Face folder with a random model and a byte-level tokenizer; prompts of every grammar fit into it."""
    tokenizer = build_tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    tiny_model(family, **{**ids, **sizes, **changes}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
