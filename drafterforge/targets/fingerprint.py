"""The fingerprint of a target: a hash of its config, tokenizer and weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

BLOCKS, BLOCK_BYTES = 256, 65536
_IDENTITY_KEYS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files in `folder`; without `consolidated*`, copies for other programs, if there are others."""
    files = sorted(folder.glob("*.safetensors"))
    return [path for path in files if not path.name.startswith("consolidated")] or files


def missing_weights(folder: Path) -> str:
    """The names of weight files that a model's folder lacks; empty if it has all of them."""
    try:
        shards = {*json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()}
    except FileNotFoundError:
        return "" if weight_files(folder) else "*.safetensors"
    except (ValueError, KeyError, AttributeError, TypeError):
        return "whole model.safetensors.index.json"
    return ", ".join(sorted(str(name) for name in shards if not (folder / str(name)).is_file()))


def fingerprint(folder: Path, weights: bool = True) -> str:
    """32 hex digits that identify the model in `folder`.

    Weight files are sampled (the header and 256 evenly spaced blocks of 64 KiB), so a target of 60 GB takes
    milliseconds.  Training changes nearly every block, so the fingerprint tells targets apart; it does not detect
    damaged files.  weights: False for the fingerprint of config and tokenizer, which a folder without weights has.
    """
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in _IDENTITY_KEYS}
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"):
        if (folder / name).is_file():
            digest.update(name.encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    for path in weight_files(folder) if weights else ():
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for index in range(BLOCKS):
                offset = index * max(size - BLOCK_BYTES, 0) // (BLOCKS - 1)
                file.seek(offset)
                digest.update(file.read(BLOCK_BYTES))
                if size <= BLOCK_BYTES:
                    break
    return digest.hexdigest()[:32]
