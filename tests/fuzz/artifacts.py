"""Readers of artifacts, bundles and heads of strangers, with valid ones to damage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from drafterforge.artifacts.folder import hash_files
from drafterforge.artifacts.manifest import MANIFEST, Manifest, canonical_json
from drafterforge.assembly.bundles import open_bundle
from drafterforge.assembly.runs import RunsFolder, open_for_decoding
from drafterforge.bundle.archive import pack, unpack
from drafterforge.bundle.record import BUNDLE
from drafterforge.bundle.write import write_bundle
from drafterforge.config.commands import InspectConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.data.chat import prompt_ids
from drafterforge.data.features import FeatureSet
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.interop.published_heads import read_head
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.interop.vllm.layouts import write_vllm
from drafterforge.pipelines import inspect
from drafterforge.replay.trace import open_traces
from drafterforge.router.router import Router
from drafterforge.runtime.engine import Engine
from drafterforge.schedulers.latency import read_profile
from drafterforge.schedulers.policy import load_policy
from drafterforge.targets.load import Target, load_target
from drafterforge.targets.shape import ModelShape
from tests.bundle.builders import facts_of, random_block, random_drafter
from tests.bundle.conftest import edit, rehash, write_parts
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import documents, mixed, mutate_bytes, mutate_json, mutate_safetensors
from tests.tiny import save_tiny_target

STORED = Path(__file__).parents[1] / "first_edition"
MUTATIONS = {
    ".json": mixed(mutate_json, mutate_json, mutate_bytes),
    ".safetensors": mixed(mutate_safetensors, mutate_bytes),
}
NOT_READ = (MANIFEST, "curves.json", "rows.json", "stats.json")  # files that an artifact's reader does not open


@cache
def served(folder: Path) -> Target:
    """A tiny target on disk."""
    model = str(save_tiny_target(folder / "target" / "tiny"))
    return load_target(TargetConfig(name="tiny", source="hf", model=model, dtype="float32"))


def several_files(
    name: str, folder: Path, files: Sequence[str], keys: Sequence[str], open_folder: Callable[[str], None]
) -> Reader:
    """A reader of a folder; an input is the number of one of its files in a byte, and the file's content.

    open_folder: called with the name of the damaged file.
    """
    originals = {file: (folder / file).read_bytes() for file in files}
    texts = [number for number, file in enumerate(files) if file.endswith(".json")]

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
        change = MUTATIONS.get(Path(files[data[0]]).suffix, mutate_bytes)
        return data[:1] + change(data[1:], chance, [seed[1:] for seed in seeds if seed[0] != data[0]])

    def read(data: bytes) -> None:
        file = files[data[0]]
        (folder / file).write_bytes(data[1:])
        try:
            open_folder(file)
        finally:
            (folder / file).write_bytes(originals[file])

    structured = None
    if texts:
        structured = st.builds(
            lambda number, content: bytes([number]) + json.dumps(content).encode(),
            st.sampled_from(texts),
            documents(keys),
        )
    seeds = [bytes([number]) + originals[file] for number, file in enumerate(files)]
    return Reader(name, read, folder, seeds, mutate, structured)


def keys_of(*paths: Path) -> list[str]:
    """All keys of JSON documents."""
    keys: set[str] = set()

    def collect(value: Any) -> None:
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(part)
        keys.update(value if isinstance(value, dict) else ())

    for path in paths:
        collect(json.loads(path.read_bytes()))
    return sorted(keys)


def forged(name: str, source: Path, folder: Path, open_folder: Callable[[Path], None]) -> Reader:
    """A reader of an artifact whose damaged files have the right hashes in its manifest."""
    folder = Path(shutil.copytree(source, folder / name))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = [file for file in files if file.endswith((".json", ".safetensors", ".arrow")) and file not in NOT_READ]
    stored = (folder / MANIFEST).read_bytes()

    def read(file: str) -> None:
        content = json.loads(stored)
        content.pop("digest")
        (folder / MANIFEST).unlink()
        content["files"] = hash_files(folder)
        (folder / MANIFEST).write_bytes(Manifest(**content).to_json())
        open_folder(folder)

    keys = keys_of(*(folder / file for file in files if file.endswith(".json")))
    return several_files(name, folder, files, keys, read)


def bundles(folder: Path) -> Reader:
    """A bundle whose files have the right hashes, opened to decode."""
    target = served(folder)
    path = folder / "bundles" / "tiny"
    write_bundle(path, *write_parts(folder / "parts", target), overwrite=False)
    files = [BUNDLE, *sorted(json.loads((path / BUNDLE).read_text())["files"])]
    files = [file for file in files if file.endswith((".json", ".safetensors"))]
    record = (path / BUNDLE).read_bytes()

    def read(file: str) -> None:
        try:
            if file == BUNDLE:
                with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
                    edit(path, lambda content: None)  # the right digest
            else:
                rehash(path, file)
            open_bundle(path, target=target).generate([[5, 6, 7]], 2)
        finally:
            (path / BUNDLE).write_bytes(record)

    return several_files("bundles", path, files, keys_of(path / BUNDLE), read)


def archives(folder: Path) -> Reader:
    """A tar file of a bundle."""
    target = served(folder)
    write_bundle(folder / "packed", *write_parts(folder / "packed-parts", target), overwrite=False)
    pack(folder / "packed", folder / "packed.tar")
    inside = folder / "archives"
    inside.mkdir()

    def read(data: bytes) -> None:
        (inside / "b.tar").write_bytes(data)
        to = inside / "to"
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        unpack(inside / "b.tar", to)

    return Reader("archives", read, inside, [(folder / "packed.tar").read_bytes()], mutate_bytes)


def manifests(folder: Path) -> Reader:
    """A manifest with the right digest, read by `inspect`."""
    path = Path(shutil.copytree(STORED / "artifacts/tiny/latency/general", folder / "manifests"))

    def read(file: str) -> None:
        put_digest_right(path)
        inspect.run(InspectConfig(path=str(path), runs_dir=str(folder / "runs")))

    return several_files("manifests", path, [MANIFEST], keys_of(path / MANIFEST), read)


def put_digest_right(folder: Path) -> None:
    """Give a damaged manifest the digest of its content, if it has one."""
    with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
        content = json.loads((folder / MANIFEST).read_bytes())
        content.pop("digest", None)
        digest = hashlib.sha256(canonical_json(content)).hexdigest()
        (folder / MANIFEST).write_text(json.dumps({**content, "digest": digest}))


def tensors(folder: Path) -> Reader:
    """The safetensors file of a drafter, read as a checkpoint is."""
    path = folder / "tensors.safetensors"
    shutil.copy(STORED / "artifacts/tiny/drafters/general/model.safetensors", path)
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(STORED / "target"), dtype="float32"))
    inside = Path(shutil.copytree(STORED / "artifacts/tiny/drafters/general", folder / "tensors"))
    from drafterforge.drafters.eagle3.checkpoint import load_drafter

    def read(data: bytes) -> None:
        (inside / "model.safetensors").write_bytes(data)
        load_drafter(inside, target.backbone.embedding)

    return Reader("safetensors", read, inside, [path.read_bytes()], mixed(mutate_safetensors, mutate_bytes))


def heads(folder: Path) -> Reader:
    """A published EAGLE-3 head."""
    target = save_tiny_target(folder / "head-target" / "tiny")
    facts = facts_of(target)
    path = folder / "heads"
    path.mkdir()
    write_sglang(path, random_drafter(facts), facts, path)
    keys = keys_of(path / "config.json")
    return several_files(
        "heads", path, ["config.json", "model.safetensors"], keys, lambda file: read_head(path, facts) and None
    )


def blocks(folder: Path) -> Reader:
    """A published block drafter with all heads."""
    target = save_tiny_target(folder / "block-target" / "tiny")
    facts = facts_of(target)
    path = folder / "blocks"
    path.mkdir()
    write_vllm(path, random_block(facts, markov_rank=3, confidence=True), facts, path)
    keys = keys_of(path / "config.json")
    return several_files(
        "blocks", path, ["config.json", "model.safetensors"], keys, lambda file: read_head(path, facts) and None
    )


def targets(folder: Path) -> Reader:
    """The folder of a target, loaded and asked for an answer; its weights are intact."""
    path = save_tiny_target(folder / "targets")
    files = sorted(file.name for file in path.iterdir() if file.suffix != ".safetensors")

    def read(file: str) -> None:
        if file == "config.json":
            shape = ModelShape.read(path / file)
            _ = shape.num_weights, shape.drafter_weights(10, True), shape.cache_bytes(2)
        target = load_target(TargetConfig(name="tiny", source="hf", model=str(path), dtype="float32"))
        Engine(target).generate([[5, 6, 7]], 2)
        prompt_ids(target.tokenizer, [{"role": "user", "content": "hi"}])

    return several_files("targets", path, files, keys_of(*path.glob("*.json")), read)


def drafters(folder: Path) -> Reader:
    """The manifest of a LoRA expert with the right digest; the expert is opened to decode."""
    runs = Path(shutil.copytree(STORED / "artifacts", folder / "drafters"))
    path = runs / "tiny/drafters/sql"
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(STORED / "target"), dtype="float32"))

    def read(file: str) -> None:
        put_digest_right(path)
        RunsFolder(str(runs), target, quiet=True).summaries()
        open_for_decoding(path, target)

    reader = several_files("drafters", path, [MANIFEST], keys_of(path / MANIFEST), read)
    return dataclasses.replace(reader, folder=runs)


def answers(folder: Path) -> Reader:
    """Arrow shards of answers."""

    def read(path: Path) -> None:
        answers = AnswerSet.open(path)
        for split in ("train", "val"):
            rows = answers.rows(split)
            _ = rows.lengths, rows.domains, rows.prompts(), [len(row.input_ids) for row in rows]

    return forged("answers", STORED / "artifacts/tiny/answers/general", folder, read)


def features(folder: Path) -> Reader:
    """Shards of features, with their index."""

    def read(path: Path) -> None:
        features = FeatureSet.open(path, Manifest.read(path).target_fingerprint)
        for split in ("train", "val"):
            features.reader(split)([0])

    return forged("features", STORED / "artifacts/tiny/features/few", folder, read)


def traces(folder: Path) -> Reader:
    """Shards of traces."""

    def read(path: Path) -> None:
        manifest = Manifest.read(path)
        _, traces = open_traces(path, manifest.target_fingerprint, manifest.target)
        _ = traces.positions, traces.ahead, traces.levels, traces.select([0])

    return forged("traces", STORED / "artifacts/tiny/traces/general", folder, read)


def policies(folder: Path) -> Reader:
    """A scheduler's policy."""
    source = STORED / "artifacts/tiny/policies/planner"
    return forged("policies", source, folder, lambda path: load_policy(path) and None)


def routers(folder: Path) -> Reader:
    """A router over states of the target."""
    source = STORED / "artifacts/tiny/policies/router"
    return forged("routers", source, folder, lambda path: Router.load(path) and None)


def latency(folder: Path) -> Reader:
    """A latency profile."""
    source = STORED / "artifacts/tiny/latency/general"
    return forged("latency", source, folder, lambda path: read_profile(path) and None)


def datastores(folder: Path) -> Reader:
    """A datastore of answers."""
    source = STORED / "artifacts/tiny/drafters/store"
    return forged("datastores", source, folder, lambda path: Datastore.open(path, 259) and None)
