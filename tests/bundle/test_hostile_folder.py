"""Opening a hostile bundle runs nothing and exits 2 with one line that names the problem."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafterforge.bundle.record import BUNDLE
from drafterforge.cli import main
from drafterforge.drafters.retrieval.model import Datastore
from tests.bundle.attacks import CONFIG, WEIGHTS, limited_memory, wrong_hash
from tests.bundle.conftest import edit, rehash


class Boom:
    """Creates a folder when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (str(Path(os.environ["BOOM"])),))


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
    """Adds the target as a small-model drafter, with another config."""

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
    """Replaces the policy by a marginal one, which has a single top_k."""

    def attack(folder: Path) -> None:
        save_file({"seconds": torch.ones(2)}, folder / "policies/shapes/policy.safetensors")
        rehash(folder, "policies/shapes/policy.safetensors")
        grid = {"name": "tiny", "num_tokens": [1, 2, 4], "depths": [1, 2], "top_ks": [1]}
        values = {"kind": "marginal", "method": "marginal", "numbers": {"reach": 0.0, "rate": 0.0}, "nets": {}}
        put_json(folder, "policies/shapes/policy.json", **values, grid=grid, top_k=top_k)

    attack.__name__ = f"marginal_{top_k}"
    return attack


def with_defaults(**changes: object) -> Callable[[Path], None]:
    """Changes the bundle's default settings."""

    def attack(folder: Path) -> None:
        edit(folder, lambda content: content["defaults"].update(changes))

    attack.__name__ = f"defaults_{'_'.join(f'{key}_{value}' for key, value in changes.items())}"[:60]
    return attack


def grid_of(**changes: object) -> dict[str, object]:
    return {"name": "tiny", "num_tokens": [1, 2, 4], "depths": [1, 2], "top_ks": [1, 2], **changes}


def store_beyond_the_vocabulary(folder: Path) -> None:
    Datastore.build([[5, 6, 7], [5, 6, 40_000]]).save(folder / "drafters/store")
    rehash(folder, "drafters/store/config.json", "drafters/store/datastore.safetensors")


def with_target(**changes: object) -> Callable[[Path], None]:
    """Changes what the bundle says of its target."""

    def attack(folder: Path) -> None:
        edit(folder, lambda content: content["target"].update(changes))

    attack.__name__ = f"target_{'_'.join(f'{key}_{value}' for key, value in changes.items())}"[:60]
    return attack


def with_copies(key: str) -> Callable[[Path], None]:
    """Repeats the first entry under many names."""

    def attack(folder: Path) -> None:
        def repeat(content: dict) -> None:
            content[key] += [{**content[key][0], "name": f"copy{number}"} for number in range(20_000)]

        edit(folder, repeat)

    attack.__name__ = f"copies_of_{key}"
    return attack


def no_object(folder: Path) -> None:
    (folder / BUNDLE).write_text("42")


def not_a_number(folder: Path) -> None:
    (folder / BUNDLE).write_text((folder / BUNDLE).read_text().replace('"depth": null', '"depth": NaN'))


def own_digest(folder: Path) -> None:
    (folder / BUNDLE).write_text((folder / BUNDLE).read_text().replace('"depth": null', '"depth": 2'))


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
    with_defaults(num_tokens=1024, depth=256, top_k=1024): "expected at most 1,048,576",
    with_defaults(top_k=2_000_000): "defaults are out of range: runtime.top_k must be <= 1024",
    with_defaults(options={"prior": 10**12}): "prior must be a whole number of at least 0, at most 1000",
    store_beyond_the_vocabulary: "holds the token id 40000, but the target has 259 ids",
    with_copies("drafters"): "drafters has 20,004 entries, expected at most 1,000",
    with_copies("parts"): "parts has 20,002 entries, expected at most 1,000",
    with_target(model="/home/of/others"): "does not exist on this machine; type target=hf target.model=FOLDER_OR_HUB_",
    with_target(model=f"/{'x' * 300}"): "does not exist on this machine",
    with_target(model="~no-such-user/x"): "does not exist on this machine",
    with_target(model="x" * 5000): "does not exist on this machine",
    with_target(name="../../outside"): "target.name is '../../outside', expected a plain folder name",
    with_target(name="/tmp/outside"): "target.name is '/tmp/outside', expected a plain folder name",
    no_object: "is damaged",
    not_a_number: "NaN is not a JSON number",
    own_digest: "does not match its digest",
    missing: "is missing",
    pipe: "is a link or no regular file",
    code_in_config: "describes a 'Mine'",
}


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_a_hostile_bundle_exits_2_with_one_line(bundle, served, attack, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BOOM", str(tmp_path / "boom"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    attack(bundle)
    began = time.monotonic()
    with limited_memory():
        code = main(["generate", f"bundle={bundle}", "prompt=a", "max_new_tokens=2"])
    error = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]
    assert code == 2 and len(error) == 1 and HOSTILE[attack] in error[0], error
    assert not (tmp_path / "boom").exists()
    assert time.monotonic() - began < 20, "ten gigabytes were read"
