"""What reads files and requests of strangers, with valid inputs to damage."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from drafterforge.artifacts.folder import hash_files
from drafterforge.artifacts.manifest import MANIFEST, Manifest, canonical_json
from drafterforge.assembly.bundles import open_bundle
from drafterforge.bundle.archive import pack, unpack
from drafterforge.bundle.record import BUNDLE
from drafterforge.bundle.write import write_bundle
from drafterforge.cli import COMMANDS
from drafterforge.config import compose
from drafterforge.config.catalogue import command_groups, config_keys, group_choices
from drafterforge.config.commands import InspectConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.data.features import FeatureSet
from drafterforge.data.sources import jsonl_rows
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.errors import DrafterforgeError
from drafterforge.interop.published_heads import read_head
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.pipelines import inspect
from drafterforge.prompts.files import read_tasks, read_yaml
from drafterforge.replay.trace import open_traces
from drafterforge.router.router import Router
from drafterforge.runtime.engine import Engine
from drafterforge.schedulers.latency import read_profile
from drafterforge.schedulers.policy import load_policy
from drafterforge.targets.load import Target, load_target
from tests.bundle.builders import facts_of, random_drafter
from tests.bundle.conftest import edit, rehash, write_parts
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import documents, mixed, mutate_bytes, mutate_json, mutate_safetensors
from tests.server.conftest import serving, speaking_target
from tests.tiny import save_tiny_target

STORED = Path(__file__).parents[1] / "first_edition"
MUTATIONS = {
    ".json": mixed(mutate_json, mutate_json, mutate_bytes),
    ".safetensors": mixed(mutate_safetensors, mutate_bytes),
}
NOT_READ = (MANIFEST, "curves.json", "rows.json", "stats.json")  # files that an artifact's reader does not open
SERVER_S = 5.0  # longest wait for an answer of the server


class RefusedError(DrafterforgeError):
    """A server answered 4xx, or closed the connection."""


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
        with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
            content = json.loads((path / MANIFEST).read_bytes())
            content.pop("digest", None)
            digest = hashlib.sha256(canonical_json(content)).hexdigest()
            (path / MANIFEST).write_text(json.dumps({**content, "digest": digest}))
        inspect.run(InspectConfig(path=str(path), runs_dir=str(folder / "runs")))

    return several_files("manifests", path, [MANIFEST], keys_of(path / MANIFEST), read)


def overrides(folder: Path) -> Reader:
    """What is typed after a command: lines of `command`, then overrides."""
    names = sorted(name for name in COMMANDS if name not in ("plan", "inspect", "learn"))
    lines = []
    for name in names:
        row = COMMANDS[name]
        groups = command_groups(row.name)
        choices = [f"{group}={choice}" for group in groups for choice in group_choices(group)[:3]]
        lines += [[name, *choices[:4]], *([name, f"{key}=1"] for key in config_keys(row.config))]
    seeds = ["\n".join(line).encode() for line in lines]
    keys = sorted({line[1].partition("=")[0] for line in lines if len(line) > 1})
    values = st.sampled_from(("", "null", "[", "[1,2]", "{a: b}", "1e400", "-1", "9" * 5000, "sql", "${oc.env:HOME}"))
    typed = st.builds(
        lambda key, equals, value: f"{key}{equals}{value}",
        st.sampled_from(keys) | st.text(max_size=8),
        st.sampled_from(("=", "", "==", "+=", "~")),
        values | st.text(max_size=30) | st.integers().map(str) | st.floats().map(str),
    )
    structured = st.builds(
        lambda name, rest: "\n".join([name, *rest]).encode("utf-8", "surrogatepass"),
        st.sampled_from(names),
        st.lists(typed, max_size=5),
    )

    composed = cache(lambda name, config, choices: compose_yaml(name, config, dict(choices)))  # hydra takes 0.1 s

    def compose_once(name: str, config: type, choices: Mapping[str, str]) -> dict[str, Any]:
        return copy.deepcopy(composed(name, config, tuple(sorted(choices.items()))))

    compose_yaml, compose._compose = compose._compose, compose_once

    def read(data: bytes) -> None:
        name, *rest = data.decode("utf-8", "replace").split("\n")
        if name not in names:
            raise RefusedError("no such command")
        row = COMMANDS[name]
        compose.load_config(row.name, row.config, rest)

    return Reader("overrides", read, folder, seeds, mutate_bytes, structured, any_seed=True)


def grammars(folder: Path) -> Reader:
    """A grammar file of one's own."""
    path = folder / "grammar.yaml"
    seeds = [
        b"lists:\n  a: [x, y]\ntasks:\n- task: t {a}\n  for: {a: a}\n  text: Say {a}.\n",
        b"tasks:\n- task: n {i}\n  for: {i: 1..9}\n  let: {j: i * 2}\n  asks: [What is {i} plus {j}?]\n",
        b"a: &a [x, x]\nb: &b [*a, *a]\ntasks: *b\n",
    ]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_yaml.cache_clear()
        for number, (_, write) in enumerate(read_tasks(path)):
            write(random.Random(0))
            if number > 20:
                break

    return Reader("grammars", read, folder, seeds, mutate_bytes, any_seed=True)


def jsonl(folder: Path) -> Reader:
    """A file of prompts."""
    path = folder / "prompts.jsonl"
    user, answer = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}
    rows = [
        {"id": "a", "messages": [{"role": "system", "content": "Be kind."}, user, answer, user], "task": "t"},
        {"prompt": "Count.", "split": "test", "licence": "MIT", "domain": "sql"},
        {"turns": ["One?", "Two?"], "group": "g"},
        {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
    ]
    seeds = [json.dumps(row).encode() + b"\n" for row in rows]
    keys = ["id", "messages", "task", "prompt", "split", "licence", "domain", "turns", "group", "conversations"]
    keys += ["role", "content", "from", "value"]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for row in jsonl_rows(path):
            for message in row.messages:
                message["content"].encode()
            json.dumps([row.id, row.domain, row.task], ensure_ascii=False).encode()

    structured = documents(keys).map(lambda content: json.dumps(content).encode() + b"\n")
    return Reader("jsonl", read, folder, seeds, mixed(mutate_json, mutate_bytes), structured)


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


def requests(folder: Path) -> Reader:
    """HTTP requests as bytes, to a server without a key."""
    plain = {"model": "tiny", "prompt": "ask", "max_tokens": 2, "temperature": 0, "seed": 1, "stop": ["x"], "n": 1}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    chat["stream_options"] = {"include_usage": True}

    def post(path: str, content: Any) -> bytes:
        body = json.dumps(content).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    get = "GET {} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nConnection: close\r\n\r\n"
    seeds = [post("/v1/completions", plain), post("/v1/chat/completions", chat)]
    seeds += [get.format(path).encode() for path in ("/v1/models", "/health", "/metrics", "/v1/models/tiny")]

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        if body and chance.random() < 0.6:
            path = "/v1/completions" if b"/v1/completions" in head else "/v1/chat/completions"
            return post(path, json.loads(mutate_json(body, chance)))
        return mutate_bytes(data, chance, seeds)

    limits = {"max_body_bytes": 20_000, "max_new_tokens": 8, "read_timeout_s": 0.05, "timeout_s": 3.0}
    server = ExitStack()  # never closed: it runs until the process ends
    serve = cache(lambda: server.enter_context(serving(Engine(speaking_target()), **limits)).address)

    def read(data: bytes) -> None:
        status = status_of(serve(), data)
        if status is None or 400 <= status < 500:
            raise RefusedError(str(status))
        assert status < 400, f"status {status}"

    bodies = documents([*plain, *chat, "role", "content"])
    paths = st.sampled_from(("/v1/completions", "/v1/chat/completions"))
    return Reader("requests", read, folder, seeds, mutate, st.builds(post, paths, bodies), connects=True)


def status_of(address: tuple[str, int], data: bytes) -> int | None:
    """The status of the answer to some bytes; None if the server closes the connection without one."""
    with socket.create_connection(address, timeout=SERVER_S) as sock:
        received = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(data)
            while b"\r\n" not in received and (part := sock.recv(65536)):
                received += part
    words = received.split(b"\r\n", 1)[0].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


READERS: dict[str, Callable[[Path], Reader]] = {
    "overrides": overrides,
    "grammars": grammars,
    "jsonl": jsonl,
    "bundles": bundles,
    "manifests": manifests,
    "safetensors": tensors,
    "archives": archives,
    "datastores": datastores,
    "answers": answers,
    "features": features,
    "traces": traces,
    "policies": policies,
    "routers": routers,
    "latency": latency,
    "heads": heads,
    "requests": requests,
}
