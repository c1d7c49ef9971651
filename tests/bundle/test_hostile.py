"""Opening a bundle from a stranger runs nothing, leaves the folder alone, and says what is wrong in one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import shutil
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafterforge.assembly.bundles import open_bundle
from drafterforge.bundle.archive import pack, unpack, unpack_to_cache
from drafterforge.bundle.record import BUNDLE
from drafterforge.cli import main
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.errors import DrafterforgeError
from tests.bundle.absurd import ABSURD, leaves, put
from tests.bundle.conftest import edit, rehash

WEIGHTS = "drafters/general/model.safetensors"
CONFIG = "drafters/general/config.json"


class Boom:
    """What a pickle would do."""

    def __reduce__(self):
        return (os.mkdir, (str(Path(os.environ["BOOM"])),))


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Two gigabytes more than now are an error."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def sparse(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)


def plant_pickle(folder: Path) -> None:
    (folder / "drafters/general/pytorch_model.bin").write_bytes(pickle.dumps(Boom()))


def list_pickle(folder: Path) -> None:
    plant_pickle(folder)
    rehash(folder, "drafters/general/pytorch_model.bin")


def disguise_pickle(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(Boom()))
    rehash(folder, WEIGHTS)


def link_out(folder: Path) -> None:
    (folder / CONFIG).rename(folder.parent / "config.json")
    (folder / CONFIG).symlink_to(folder.parent / "config.json")


def link_folder(folder: Path) -> None:
    shutil.move(folder / "drafters", folder.parent / "drafters")
    (folder / "drafters").symlink_to(folder.parent / "drafters")


def climb(folder: Path) -> None:
    (folder.parent / "outside.json").write_text("{}")
    edit(folder, lambda content: content["files"].update({"../outside.json": {"sha256": "0" * 64, "bytes": 2}}))


def climb_by_entry(folder: Path) -> None:
    edit(folder, lambda content: content["drafters"][0].update(path="../tiny/drafters/general"))


def absolute(folder: Path) -> None:
    edit(folder, lambda content: content["files"].update({"/etc/hosts.json": {"sha256": "0" * 64, "bytes": 2}}))


def sparse_file(folder: Path) -> None:
    sparse(folder / WEIGHTS, 10 << 30)


def sparse_record(folder: Path) -> None:
    sparse(folder / BUNDLE, 10 << 30)


def wrong_hash(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def truncated(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    rehash(folder, WEIGHTS)


def huge_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    rehash(folder, WEIGHTS)


def absurd_width(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"intermediate_size": 10**12}))
    rehash(folder, CONFIG)


def deep(folder: Path) -> None:
    (folder / BUNDLE).write_text("[" * 200_000 + "]" * 200_000)


def deep_part(folder: Path) -> None:
    (folder / CONFIG).write_text("[" * 200_000 + "]" * 200_000)
    rehash(folder, CONFIG)


def deep_adapter(folder: Path) -> None:
    name = "drafters/sql/adapter/adapter_config.json"
    (folder / name).write_text("[" * 200_000 + "]" * 200_000)
    rehash(folder, name)


def deep_store(folder: Path) -> None:
    (folder / "drafters/store/config.json").write_text("[" * 200_000 + "]" * 200_000)
    rehash(folder, "drafters/store/config.json")


def terminal(folder: Path) -> None:
    edit(folder, lambda content: content["licences"].update(target="MIT\x1b[2J\x1b]0;you are root\x07"))


def c1_terminal(folder: Path) -> None:
    edit(folder, lambda content: content.update(name="house\x9b2J"))


def options_of_the_pool(folder: Path) -> None:
    edit(folder, lambda content: content["defaults"].update(options={"every": 2}))


def small_lm_with_code(folder: Path) -> None:
    (folder / "drafters/lm").mkdir()
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "evil/code--evil.Mine"}}
    (folder / "drafters/lm/config.json").write_text(json.dumps(config))
    (folder / "drafters/lm/model.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    entry = {"name": "lm", "kind": "causal_lm", "path": "drafters/lm", "base": "", "domain": "", "licence": ""}
    edit(folder, lambda content: content["drafters"].append(entry | {"training": {}, "evaluation": {}}))
    edit(folder, lambda content: content["defaults"]["drafters"].append("lm"))
    rehash(folder, "drafters/lm/config.json", "drafters/lm/model.safetensors")


def put_json(folder: Path, name: str, **changes: object) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))
    rehash(folder, name)


def with_small_lm(**changes: object) -> Callable[[Path], None]:
    """Adds the target itself as a drafter, with another config."""

    def attack(folder: Path) -> None:
        target = Path(json.loads((folder / BUNDLE).read_text())["target"]["model"])
        shutil.copytree(target, folder / "drafters/lm")
        entry = {"name": "lm", "kind": "causal_lm", "path": "drafters/lm", "base": "", "domain": "", "licence": ""}
        edit(folder, lambda content: content["drafters"].append(entry | {"training": {}, "evaluation": {}}))
        edit(folder, lambda content: content["defaults"]["drafters"].append("lm"))
        rehash(folder, *(f"drafters/lm/{path.name}" for path in (folder / "drafters/lm").iterdir()))
        put_json(folder, "drafters/lm/config.json", **changes)

    attack.__name__ = f"small_lm_{'_'.join(f'{key}_{value}' for key, value in changes.items())}"[:60]
    return attack


def with_policy(**changes: object) -> Callable[[Path], None]:
    """Changes the policy's description."""

    def attack(folder: Path) -> None:
        put_json(folder, "policies/shapes/policy.json", **changes)

    attack.__name__ = f"policy_{'_'.join(f'{key}_{value}' for key, value in changes.items())}"[:60]
    return attack


def with_marginal(top_k: int) -> Callable[[Path], None]:
    """Another kind of policy, of two sizes."""

    def attack(folder: Path) -> None:
        save_file({"seconds": torch.ones(2)}, folder / "policies/shapes/policy.safetensors")
        rehash(folder, "policies/shapes/policy.safetensors")
        grid = {"name": "tiny", "num_tokens": [1, 2, 4], "depths": [1, 2], "top_ks": [1]}
        values = {"kind": "marginal", "method": "marginal", "numbers": {"reach": 0.0, "rate": 0.0}, "nets": {}}
        put_json(folder, "policies/shapes/policy.json", **values, grid=grid, top_k=top_k)

    attack.__name__ = f"marginal_{top_k}"
    return attack


def with_defaults(**changes: object) -> Callable[[Path], None]:
    """Changes what the engine does."""

    def attack(folder: Path) -> None:
        edit(folder, lambda content: content["defaults"].update(changes))

    attack.__name__ = f"defaults_{'_'.join(f'{key}_{value}' for key, value in changes.items())}"[:60]
    return attack


def grid_of(**changes: object) -> dict[str, object]:
    return {"name": "tiny", "num_tokens": [1, 2, 4], "depths": [1, 2], "top_ks": [1, 2], **changes}


def store_beyond_the_vocabulary(folder: Path) -> None:
    Datastore.build([[5, 6, 7], [5, 6, 40_000]]).save(folder / "drafters/store")
    rehash(folder, "drafters/store/config.json", "drafters/store/datastore.safetensors")


def elsewhere(folder: Path) -> None:
    edit(folder, lambda content: content["target"].update(model="/home/of/others"))


def no_object(folder: Path) -> None:
    (folder / BUNDLE).write_text("42")


def not_a_number(folder: Path) -> None:
    (folder / BUNDLE).write_text((folder / BUNDLE).read_text().replace('"every": 1', '"every": NaN'))


def own_digest(folder: Path) -> None:
    (folder / BUNDLE).write_text((folder / BUNDLE).read_text().replace('"every": 1', '"every": 2'))


def missing(folder: Path) -> None:
    (folder / CONFIG).unlink()


def pipe(folder: Path) -> None:
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


def code_in_config(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    config |= {"architectures": ["Mine"], "auto_map": {"AutoModel": "evil.Mine"}}
    (folder / CONFIG).write_text(json.dumps(config))
    rehash(folder, CONFIG)


HOSTILE = {
    plant_pickle: "is not named in bundle.json",
    list_pickle: "no pickles or programs",
    disguise_pickle: "not a readable drafter",
    link_out: "is a link",
    link_folder: "is a link",
    climb: "expected a plain path inside the bundle",
    climb_by_entry: "expected a plain path inside the bundle",
    absolute: "expected a plain path inside the bundle",
    sparse_file: "has 10,737,418,240 bytes, but bundle.json says",
    sparse_record: "a file of its kind has at most",
    wrong_hash: "has sha256",
    truncated: "not a readable drafter",
    huge_header: "not a readable drafter",
    absurd_width: "intermediate_size",
    deep: "is damaged",
    deep_part: "is damaged",
    deep_adapter: "is damaged",
    deep_store: "is damaged",
    terminal: "holds control characters",
    c1_terminal: "holds control characters",
    options_of_the_pool: "option of hedgespec",
    small_lm_with_code: "has model_type 'mine', which transformers does not know",
    with_small_lm(num_hidden_layers=100_000): "hold 7 layers",
    with_small_lm(num_hidden_layers=10_000_000): "hold 7 layers",
    with_small_lm(num_hidden_layers=-1): "num_hidden_layers=-1",
    with_small_lm(num_hidden_layers=0): "num_hidden_layers=0",
    with_small_lm(intermediate_size=10**9): "describes model.layers.0.mlp.gate_proj.weight with shape [1000000000, 32]",
    with_small_lm(vocab_size=10**9): "describes model.embed_tokens.weight with shape [1000000000, 32]",
    with_small_lm(max_position_embeddings=-1): "at least one position",
    with_small_lm(num_attention_heads=3, hidden_size=33): "describes model.embed_tokens.weight with shape [259, 33]",
    with_small_lm(model_type="qwen3", num_hidden_layers=10**12): "hold 7 layers",
    with_small_lm(quantization_config={"quant_method": "mxfp4"}): "has quantization_config",
    with_policy(every=0): "every is 0, wanted 1",
    with_policy(every=-1): "every is -1, wanted 1",
    with_policy(temperature=-1): "temperature is -1, wanted 0",
    with_policy(parts=["length", "children"]): "but the network reads 1",
    with_policy(parts=["features"]): "but the network reads 1",
    with_policy(parts=["length", "length"]): "each once",
    with_policy(kind="shape"): "kind is 'shape', wanted shapes",
    with_policy(grid=grid_of(num_tokens=[1, 2])): "actions; wanted",
    with_policy(grid=grid_of(top_ks=[1, 2_000_000])): "rising numbers from 1 to 1024",
    with_policy(grid=grid_of(depths=[200], top_ks=[1024])): "1,048,576 at most",
    with_marginal(2_000_000): "top_k is 2000000, wanted the only one of its grid",
    with_defaults(every=0): "defaults.every is 0, expected 1",
    with_defaults(num_tokens=1024, depth=256, top_k=1024): "expected at most 1,048,576",
    with_defaults(top_k=2_000_000): "defaults are out of range: runtime.top_k must be <= 1024",
    with_defaults(options={"prior": 10**12}): "prior must be a whole number of at least 0, at most 1000",
    store_beyond_the_vocabulary: "holds the token id 40000, but the target has 259 ids",
    elsewhere: "does not exist on this machine; type target=hf target.model=FOLDER_OR_HUB_ID",
    no_object: "is damaged",
    not_a_number: "NaN is not a JSON number",
    own_digest: "does not match its digest",
    missing: "is missing",
    pipe: "is a link or no regular file",
    code_in_config: "describes a 'Mine'",
}


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_a_hostile_bundle_is_one_line_and_exit_2(bundle, served, attack, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BOOM", str(tmp_path / "boom"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    attack(bundle)
    began = time.monotonic()
    with little_memory():
        code = main(["generate", f"bundle={bundle}", "prompt=a", "max_new_tokens=2"])
    error = capsys.readouterr().err.splitlines()
    assert code == 2 and len(error) == 1 and HOSTILE[attack] in error[0], error
    assert not (tmp_path / "boom").exists()
    assert time.monotonic() - began < 20, "ten gigabytes were read"


def archive(path: Path, folder: Path, change) -> Path:
    """An archive of the bundle, with members changed or added."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in [BUNDLE, *sorted(json.loads((folder / BUNDLE).read_text())["files"])]:
            data = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            change(tar, member, data)
    return path


def as_link(tar, member, data):
    if member.name == CONFIG:
        member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/hosts", 0
        tar.addfile(member)
    else:
        tar.addfile(member, io.BytesIO(data))


def with_climber(tar, member, data):
    tar.addfile(member, io.BytesIO(data))
    if member.name == BUNDLE:
        evil = tarfile.TarInfo("../../evil.json")
        evil.size = 2
        tar.addfile(evil, io.BytesIO(b"{}"))


def twice(tar, member, data):
    tar.addfile(member, io.BytesIO(data))
    if member.name == CONFIG:
        tar.addfile(member, io.BytesIO(data))


def larger(tar, member, data):
    if member.name == CONFIG:
        data += b" " * 1000
        member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def without_one(tar, member, data):
    if member.name != CONFIG:
        tar.addfile(member, io.BytesIO(data))


ARCHIVES = {
    as_link: "a link or no regular file",
    with_climber: "not named in bundle.json",
    twice: "cannot be unpacked",
    larger: "but bundle.json says",
    without_one: "is missing",
}


@pytest.mark.parametrize("change", ARCHIVES, ids=lambda change: change.__name__)
def test_a_hostile_archive_is_refused_and_leaves_nothing(whole_bundle, tmp_path, monkeypatch, change):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    path = archive(tmp_path / "b.tar", whole_bundle, change)
    with pytest.raises(DrafterforgeError, match=ARCHIVES[change]):
        open_bundle(path)
    assert not list((tmp_path / "cache").rglob("*.json")) and not (tmp_path / "evil.json").exists()


def test_a_cut_archive_is_refused(whole_bundle, tmp_path):
    pack(whole_bundle, tmp_path / "b.tar")
    (tmp_path / "b.tar").write_bytes((tmp_path / "b.tar").read_bytes()[:50_000])
    (tmp_path / "to").mkdir()
    with pytest.raises(DrafterforgeError, match=r"is damaged|is missing|bytes, but"):
        unpack(tmp_path / "b.tar", tmp_path / "to")


def header_of(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar header that claims `size` bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def blocks(data: bytes) -> bytes:
    """Padded to whole blocks of a tar file."""
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)


def pax(**values: str) -> bytes:
    """A pax header in front of a member."""
    lines = b""
    for key, value in values.items():
        line = f" {key}={value}\n".encode()
        size = len(line) + 1
        while size != len(line) + len(str(size)):
            size = len(line) + len(str(size))
        lines += str(size).encode() + line
    return header_of("././@PaxHeader", len(lines), tarfile.XHDTYPE) + blocks(lines)


def long_name_claims(path: Path) -> None:
    path.write_bytes(header_of("././@LongLink", 1 << 50, tarfile.GNUTYPE_LONGNAME) + bytes(2048))


def pax_claims(path: Path) -> None:
    path.write_bytes(header_of("././@PaxHeader", 1 << 50, tarfile.XHDTYPE) + bytes(2048))


def member_claims(path: Path) -> None:
    path.write_bytes(header_of(BUNDLE, 1 << 50) + bytes(2048))


def pax_size_claims(path: Path) -> None:
    path.write_bytes(pax(size=str(1 << 50)) + header_of(BUNDLE, 0) + bytes(2048))


def large_pax(path: Path) -> None:
    path.write_bytes(pax(comment="x" * (1 << 22)) + header_of(BUNDLE, 0) + bytes(2048))


def large_long_name(path: Path) -> None:
    name = header_of("././@LongLink", 1 << 22, tarfile.GNUTYPE_LONGNAME) + bytes(1 << 22)
    path.write_bytes(name + header_of(BUNDLE, 0) + bytes(2048))


def pax_without_end(path: Path) -> None:
    path.write_bytes(header_of("././@PaxHeader", 8, tarfile.XHDTYPE) + blocks(b"0 a=b\n") + bytes(2048))


def gnu_sparse(path: Path) -> None:
    path.write_bytes(header_of(BUNDLE, 0, tarfile.GNUTYPE_SPARSE) + bytes(2048))


def pax_sparse(path: Path) -> None:
    sparse_map = b"1000000\n" * (1 << 19)  # as many integers
    values = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": BUNDLE, "GNU.sparse.realsize": "0"}
    path.write_bytes(pax(**values) + header_of(BUNDLE, len(sparse_map)) + blocks(sparse_map) + bytes(1024))


def compressed(path: Path) -> None:
    path.write_bytes(gzip.compress(header_of(BUNDLE, 64 << 20) + bytes(64 << 20)))


BOMBS = {
    long_name_claims: "claims 1,125,899,906,842,624 bytes",
    pax_claims: "claims 1,125,899,906,842,624 bytes",
    member_claims: "claims 1,125,899,906,842,624 bytes",
    pax_size_claims: "claims 1,125,899,906,842,624 bytes",
    large_pax: "a header of 4,194,321 bytes for a name, expected at most 16,384",
    large_long_name: "a header of 4,194,304 bytes for a name, expected at most 16,384",
    pax_without_end: "cannot be unpacked",
    gnu_sparse: "does not begin with bundle.json",
    pax_sparse: "does not begin with bundle.json",
    compressed: "is not a bundle; expected a folder",
}


@pytest.mark.parametrize("write", BOMBS, ids=lambda write: write.__name__)
def test_a_tar_file_costs_no_memory_before_it_is_refused(tmp_path, monkeypatch, write):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "bomb.tar")
    tracemalloc.start()
    try:
        with pytest.raises(DrafterforgeError, match=BOMBS[write]):
            open_bundle(tmp_path / "bomb.tar")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2 << 20, f"{most:,} bytes"


def test_names_too_long_for_the_header_of_1988_are_unpacked(whole_bundle, tmp_path):
    folder = Path(shutil.copytree(whole_bundle, tmp_path / "tiny"))
    name = f"drafters/general/{'n' * 120}.txt"
    (folder / name).write_text("notes")
    rehash(folder, name)
    pack(folder, tmp_path / "pax.tar")
    archive(tmp_path / "gnu.tar", folder, lambda tar, member, data: tar.addfile(member, io.BytesIO(data)))
    for path in (tmp_path / "pax.tar", tmp_path / "gnu.tar"):
        (to := tmp_path / path.stem).mkdir()
        unpack(path, to)
        assert (to / name).read_text() == "notes"


def test_a_damaged_copy_of_an_unpacked_archive_is_made_anew(whole_bundle, served, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pack(whole_bundle, tmp_path / "b.tar")
    (folder,) = {unpack_to_cache(tmp_path / "b.tar"), unpack_to_cache(tmp_path / "b.tar")}
    wrong_hash(folder)
    assert unpack_to_cache(tmp_path / "b.tar") == folder
    assert (folder / WEIGHTS).read_bytes() == (whole_bundle / WEIGHTS).read_bytes()
    open_bundle(tmp_path / "b.tar", target=served)


DOCUMENTS = (BUNDLE, CONFIG, "drafters/sql/adapter/adapter_config.json", "policies/shapes/policy.json")
DOCUMENTS += ("routers/domains/router.json", "drafters/store/config.json")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_any_value_of_any_document_may_be_absurd(bundle, served, document):
    full = json.loads((bundle / document).read_text())
    opened = refused = 0
    wrong: list[str] = []
    with little_memory():
        for number, place in enumerate(leaves(full)):
            for value in ABSURD[number % 4 :: 4]:  # a quarter of them at each place
                content = put(full, place, value)
                if document == BUNDLE:
                    if isinstance(content, dict):
                        (bundle / BUNDLE).write_text(json.dumps({"digest": "", **content}))
                        edit(bundle, lambda content: None)
                    else:
                        (bundle / BUNDLE).write_text(json.dumps(content))
                else:
                    (bundle / document).write_text(json.dumps(content))
                    rehash(bundle, document)
                try:
                    engine = open_bundle(bundle, target=served)
                    engine.generate([[5, 6, 7]], 3)
                    opened += 1
                except DrafterforgeError as error:
                    refused += 1
                    if "\n" in str(error) or len(str(error)) > 2000:
                        wrong.append(f"{place} = {str(value)[:30]!r}: {str(error)[:200]}")
                except Exception as error:
                    wrong.append(f"{place} = {str(value)[:30]!r}: {str(error)[:200]!r} {type(error).__name__}")
    assert not wrong, "\n".join(wrong)
    assert refused > 0 and (opened > 0 or "store" in document)  # whose every value is checked
