"""Published heads as files: their layout, shards, damage and download."""

from __future__ import annotations

import json
import struct

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.errors import ArtifactError
from drafterforge.interop.published_heads import fetch_head, read_head
from tests.bundle.builders import edit, edit_tensors
from tests.bundle.heads import equal_weights, refusal


@pytest.mark.parametrize("format", ["auto", "itself"])
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_the_config_tells_the_layout(request, facts, drafter, layout, format):
    head = read_head(request.getfixturevalue(layout), facts, layout if format == "itself" else "auto")
    assert head.format == layout and equal_weights(head.drafter, drafter) and head.drafter.spec == drafter.spec
    assert head.files.keys() == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(("layout", "typed"), [("eagle3", "speculators"), ("speculators", "eagle3")])
def test_another_layout_than_typed_is_refused(request, facts, layout, typed):
    line = refusal(request.getfixturevalue(layout), facts, format=typed)
    assert f"has the layout {layout}, not {typed}; type format={layout}" in line


@pytest.mark.parametrize("name", ["Eagle3LlamaForCausalLM", "LlamaForCausalLM"])
def test_a_head_is_read_under_any_published_architecture_name(facts, drafter, eagle3, name):
    edit(eagle3, architectures=[name])
    assert equal_weights(read_head(eagle3, facts).drafter, drafter)


def test_a_config_with_the_fewest_published_keys_is_enough(facts, drafter, eagle3):
    keep = ("architectures", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    keep += ("rms_norm_eps", "vocab_size", "draft_vocab_size")
    config = json.loads((eagle3 / "config.json").read_text())
    (eagle3 / "config.json").write_text(json.dumps({key: config[key] for key in keep}))
    edit_tensors(eagle3, lambda tensors: tensors.pop("t2d"))
    head = read_head(eagle3, facts)
    assert head.drafter.spec == drafter.spec and equal_weights(head.drafter, drafter)
    assert "names no layers: assuming the usual ones" in head.notes[1] and "no rope_theta: using 10000" in head.notes[0]


def test_a_sharded_head_is_read_as_one(facts, drafter, eagle3):
    tensors = load_file(eagle3 / "model.safetensors")
    (eagle3 / "model.safetensors").unlink()
    names = sorted(tensors)
    index = {}
    for part, shard_names in enumerate((names[:5], names[5:])):
        index |= dict.fromkeys(shard_names, f"part-{part}.safetensors")
        save_file({name: tensors[name] for name in shard_names}, eagle3 / f"part-{part}.safetensors")
    listed = eagle3 / "model.safetensors.index.json"
    listed.write_text(json.dumps({"weight_map": index}))
    head = read_head(eagle3, facts)
    assert equal_weights(head.drafter, drafter)
    assert head.files.keys() == {"config.json", "part-0.safetensors", "part-1.safetensors"}
    save_file(
        {"norm.weight": tensors["norm.weight"], **{n: tensors[n] for n in names[:5]}}, eagle3 / "part-0.safetensors"
    )
    assert "holds norm.weight, which another file of the head holds too" in refusal(eagle3, facts)
    (eagle3 / "part-1.safetensors").unlink()
    assert "lacks part-1.safetensors, which model.safetensors.index.json lists" in refusal(eagle3, facts)
    listed.write_text(json.dumps({"weight_map": {"norm.weight": "../elsewhere.safetensors"}}))
    assert "lists '../elsewhere.safetensors'" in refusal(eagle3, facts)
    listed.write_text("[]")
    assert "has no weight_map" in refusal(eagle3, facts)


def test_a_pickle_is_never_opened(facts, eagle3, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    (eagle3 / "model.safetensors").rename(eagle3 / "pytorch_model.bin")
    line = refusal(eagle3, facts)
    assert "loads no pickle" in line and "weights_only=True" in line and "save_file" in line


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "header"])
def test_a_damaged_weight_file_is_refused(facts, eagle3, damage):
    path = eagle3 / "model.safetensors"
    content = path.read_bytes()
    header = struct.pack("<Q", 1 << 40) + content[8:]
    path.write_bytes({"cut": content[:-100], "empty": b"", "header": header, "gone": b""}[damage])
    if damage == "gone":
        path.unlink()
    assert ("holds no model.safetensors" if damage == "gone" else "not a readable safetensors") in refusal(
        eagle3, facts
    )


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null"])
def test_a_damaged_config_is_refused(facts, eagle3, content):
    path = eagle3 / "config.json"
    path.unlink() if content is None else path.write_text(content)
    line = refusal(eagle3, facts)
    assert content is not None or "has no config.json; wanted an EAGLE-3 head" in line


def test_a_hub_id_fetches_json_and_safetensors_only(eagle3, monkeypatch):
    downloads = []

    def fetch(name, **options):
        downloads.append((name, options))
        return str(eagle3)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert fetch_head("owner/head", "v1") == (eagle3, eagle3.name)
    assert downloads == [("owner/head", {"revision": "v1", "allow_patterns": ["*.json", "*.safetensors"]})]
    assert fetch_head(str(eagle3)) == (eagle3, None) and len(downloads) == 1
    for path in ("./nothing", "/nothing", "nothing", "a/b/c"):
        with pytest.raises(ArtifactError, match="no folder and no hub id"):
            fetch_head(path)
    with pytest.raises(ArtifactError, match="revision= is for hub ids, but path="):
        fetch_head(str(eagle3), "v1")

    def fail(name, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ArtifactError, match=r"cannot download path=owner/head from the hub \(no route\)"):
        fetch_head("owner/head")
