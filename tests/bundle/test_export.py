"""An exported folder holds the drafter's weights and every key of its config, and is written atomically."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from drafterforge.artifacts.learned import JOINED, LEFT, LearnedVersion, update_record
from drafterforge.bundle.write import write_bundle
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_drafter
from drafterforge.drafters.eagle3.spec import NORMS_31
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out, unroll
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.vllm_exports import names_in_runs
from drafterforge.interop.export import export_drafters, exported_names
from drafterforge.interop.export import write_drafter as write_one
from drafterforge.interop.layout import lossless_dtype, read_target, served_spec, target_embedding, write_export
from drafterforge.interop.published_heads import read_head
from drafterforge.interop.sglang.layout import serve_sglang, write_sglang
from drafterforge.interop.vllm.layouts import write_vllm
from tests.bundle.builders import config_of, export, random_drafter, write_drafter
from tests.models import NORMS

FORMATS = [("sglang", ""), ("vllm", ""), ("vllm", "plain")]
SCALED = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}


def config_in(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("format", "layout"), FORMATS)
@pytest.mark.parametrize("name", ["general", "sql"])
def test_export_and_import_give_the_same_drafter(runs, tiny, facts, tmp_path, name, format, layout):
    export(runs, tiny, name, tmp_path / "out", format=format, layout=layout)
    source = load_drafter(runs / "tiny" / "drafters" / name, facts.embedding)
    back = read_head(tmp_path / "out", facts).drafter
    assert back.spec == source.spec
    for key, tensor in source.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


def test_experts_of_a_server_s_traffic_are_exported_only_if_they_are_named(runs, tiny, facts, tmp_path, capsys):
    states = {"sql": JOINED, "general": LEFT}
    versions = [LearnedVersion(name, name, state, "", 0.1, 0.1, 0.1, 9, 9, "") for name, state in states.items()]
    update_record(runs / "tiny" / "traffic", lambda record: dataclasses.replace(record, versions=versions))
    assert exported_names(str(runs), "tiny") == []
    assert "left out, because they learned from the traffic of a server: sql;" in capsys.readouterr().err
    export(runs, tiny, "sql", tmp_path / "out", format="sglang")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("size", [40, 10_000], ids=["map", "whole vocabulary"])
@pytest.mark.parametrize("write", [partial(write_vllm, layout="plain"), write_vllm], ids=["plain", "speculators"])
def test_every_kind_of_drafter_survives(facts, tmp_path, write, size, before):
    drafter = random_drafter(facts, size, norm_before_residual=before, rope_parameters=SCALED)
    write(tmp_path, drafter, facts, tmp_path)
    back = read_head(tmp_path, facts).drafter
    assert back.spec == drafter.spec
    assert all(torch.equal(back.state_dict()[key], tensor) for key, tensor in drafter.state_dict().items())


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize(
    "write", [write_sglang, partial(write_vllm, layout="plain"), write_vllm], ids=["sglang", "plain", "speculators"]
)
def test_the_norms_of_eagle_3_1_survive_with_equal_tensors_and_equal_logits(facts, tmp_path, write, norms):
    drafter = random_drafter(facts, **norms)
    write(tmp_path, drafter, facts, tmp_path)
    assert {flag: config_in(tmp_path)[flag] for flag in NORMS_31} == dict.fromkeys(NORMS_31, False) | norms
    back = read_head(tmp_path, facts).drafter
    assert back.spec == drafter.spec
    assert all(torch.equal(back.state_dict()[key], tensor) for key, tensor in drafter.state_dict().items())
    features, tokens = torch.randn(9, 96), torch.randint(0, 200, (9,))
    ours, theirs = (drafted_logits(model, features, tokens) for model in (drafter, back))
    assert torch.equal(ours, theirs)


def drafted_logits(drafter, features, tokens) -> torch.Tensor:
    """Logits of three draft steps over a text, teacher-forced."""
    full = {"tokens": tokens, "positions": torch.arange(9), "loss_mask": torch.ones(9, dtype=torch.bool)}
    batch = PackedBatch(**full, lengths=[9], features=features, states=features, argmax=tokens)
    with torch.no_grad():
        return drafter.lm_head(unroll(drafter, batch, lay_out(batch, 3), 3, recompute=False))


@pytest.mark.parametrize(("format", "layout"), FORMATS)
def test_exporting_the_norms_of_eagle_3_1_names_the_servers_that_read_them(facts, tmp_path, format, layout):
    typed = ExportConfig(format=format, layout=layout)
    for norms in NORMS.values():
        out = tmp_path / "-".join(["out", *norms])
        lines = write_one(typed, random_drafter(facts, **norms), facts, "sql", "", out)
        expected = [f"it has {' and '.join(norms)}, which only SGLang and vLLM support"]
        assert lines[1:-1] == (expected if norms else []) and lines[-1].startswith("serve it with: ")


def test_a_drafter_that_sglang_would_misread_is_not_exported_to_it(facts, tmp_path):
    with pytest.raises(ArtifactError, match="which SGLang and SafeAILab's code ignore"):
        write_sglang(tmp_path, random_drafter(facts, norm_before_residual=True), facts, tmp_path)
    assert not any(tmp_path.iterdir())


def test_weights_are_bfloat16_if_that_is_lossless_and_float32_otherwise(runs, tiny, tmp_path):
    for name, expected in (("general", torch.bfloat16), ("sql", torch.float32)):
        export(runs, tiny, name, tmp_path / name)
        assert load_file(tmp_path / name / "model.safetensors")["fc.weight"].dtype == expected
        assert config_in(tmp_path / name)["torch_dtype"] == str(expected).removeprefix("torch.")
    export(runs, tiny, "sql", tmp_path / "half", weights="bfloat16")
    assert load_file(tmp_path / "half" / "model.safetensors")["fc.weight"].dtype == torch.bfloat16
    assert lossless_dtype({"x": torch.tensor([1.0 + 2**-9])}) == torch.float32


def test_the_speculators_layout_has_the_targets_embedding_and_their_names(facts, drafter, speculators):
    tensors = load_file(speculators / "model.safetensors")
    assert torch.equal(tensors.pop("embed_tokens.weight"), facts.embedding)
    ours = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in drafter.state_dict().items()}
    assert tensors.keys() == ours.keys()
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    names = [name for name in tensors if name not in ("d2t", "t2d")]
    assert not any("d2t" in name or "t2d" in name for name in names)  # servers match these as substrings


def test_the_speculators_config_sets_every_flag(facts, speculators):
    config = config_in(speculators)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "tie_word_embeddings")
    assert [config[flag] for flag in flags] == [False] * 5
    assert (config["architectures"], config["speculators_model_type"]) == (["Eagle3DraftModel"], "eagle3")
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert (config["draft_vocab_size"], config["target_hidden_size"], config["dtype"]) == (40, 32, "bfloat16")
    described = config["speculators_config"]
    assert described["verifier"] == {"name_or_path": facts.model, "architectures": ["LlamaForCausalLM"]}
    assert described["proposal_methods"][0]["speculative_tokens"] == 3
    assert described["default_proposal_method"] == described["proposal_methods"][0]["proposal_type"]


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 5000.0}, SCALED])
@pytest.mark.parametrize("spelling", ["new", "old"])
def test_both_spellings_of_the_rope_mean_the_drafters_rope(facts, tmp_path, rope, spelling):
    write_vllm(tmp_path, random_drafter(facts, rope_parameters=rope), facts, tmp_path)
    layer = config_in(tmp_path)["transformer_layer_config"]
    for key in ("rope_theta", "rope_scaling") if spelling == "new" else ("rope_parameters",):
        del layer[key]
    config = LlamaConfig(**layer)
    assert {key: config.rope_parameters[key] for key in rope} == rope
    assert (config.head_dim, config.num_key_value_heads, config.tie_word_embeddings) == (8, 2, False)


@pytest.mark.parametrize(("rope", "stays"), [(SCALED, False), (YARN, True)])
def test_the_targets_longest_sequence_is_written_unless_the_rope_depends_on_the_drafters(facts, rope, stays):
    spec = random_drafter(facts, rope_parameters=rope, max_positions=64).spec
    served = served_spec(spec, facts.config)
    assert served.max_positions == (64 if stays else facts.config.max_position_embeddings)
    assert torch.equal(served.rotary()[0], spec.rotary()[0])


# Commands.


def test_the_commands_name_target_and_drafter(runs, tiny, tmp_path):
    out = tmp_path / "it's here"  # the shell needs it quoted
    typed = {}
    for format, layout in FORMATS:
        lines = export(runs, tiny, "general", out, format=format, layout=layout, overwrite=True)
        assert lines[0].startswith(f"wrote {out}: drafter general, ")
        typed[format, layout] = shlex.split(lines[-1].removeprefix("serve it with: "))
    assert typed["vllm", ""] == ["vllm", "serve", str(out), "--dtype", "float32"]
    plain = typed["vllm", "plain"]
    assert plain[:3] == ["vllm", "serve", str(tiny)]
    expected = {"method": "eagle3", "model": str(out), "num_speculative_tokens": 3}
    assert json.loads(plain[plain.index("--speculative-config") + 1]) == expected
    flags = dict(zip(typed["sglang", ""][3::2], typed["sglang", ""][4::2], strict=True))
    assert (flags["--model-path"], flags["--speculative-draft-model-path"]) == (str(tiny), str(out))
    assert flags["--speculative-algorithm"] == "EAGLE3" and flags["--dtype"] == "float32"
    steps, width = int(flags["--speculative-num-steps"]), int(flags["--speculative-eagle-topk"])
    assert (width, int(flags["--speculative-num-draft-tokens"])) == (1, steps + 1)  # the root counts too


def test_a_target_on_the_hub_is_named_by_its_id(facts, tmp_path):
    hub = dataclasses.replace(facts, model="owner/model")
    assert " --model-path owner/model " in serve_sglang(hub, tmp_path)


@pytest.mark.parametrize(("format", "layout"), FORMATS)
def test_a_revision_of_a_target_on_the_hub_is_named_by_its_snapshot(runs, tiny, tmp_path, monkeypatch, format, layout):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tiny))
    hub = TargetConfig(name="tiny", source="hf", model="owner/model")
    typed = {
        "runs_dir": str(runs),
        "drafter": "general",
        "format": format,
        "layout": layout,
        "out": str(tmp_path / "a"),
    }
    export_hub = partial(ExportConfig, **typed)
    for revision, model in ((None, "owner/model"), ("v2", str(tiny))):
        target = dataclasses.replace(hub, revision=revision)
        line = list(export_drafters(export_hub(target=target, overwrite=True)))[-1]
        verifier = config_in(tmp_path / "a").get("speculators_config", {}).get("verifier", {}).get("name_or_path")
        assert verifier == model if verifier else model in shlex.split(line)


# Folders.


def test_an_export_goes_beside_the_drafters_when_no_folder_is_named(runs, tiny):
    for format, layout in FORMATS:
        export(runs, tiny, "general", format=format, layout=layout)
    names = sorted(path.name for path in (runs / "tiny" / "exports").iterdir())
    assert names == ["general-sglang", "general-vllm", "general-vllm-plain"]
    assert sorted(os.listdir(runs / "tiny" / "exports" / "general-vllm")) == ["config.json", "model.safetensors"]


def test_a_drafter_of_runs_is_not_replaced_by_that_of_the_bundle_main(runs, tiny, served, parts, tmp_path):
    main = runs / "tiny" / "bundles" / "main"
    write_bundle(main, *parts, overwrite=False)
    by_bundle = dict(bundle="main", overwrite=True)
    sources = {"runs": export(runs, tiny, "sql"), "bundle": export(runs, tiny, "sql", **by_bundle)}
    assert sources["runs"][0] == f"from {runs}; for the drafters of the bundle main, type bundle=main"
    assert sources["bundle"][0] == f"from the bundle {main}"
    assert export(runs, tiny, "", overwrite=True)[0] == f"from the bundle {main}"
    path = str(runs / "tiny" / "drafters" / "general")
    assert export(runs, tiny, path, overwrite=True)[0].startswith(f"from {runs};")
    shutil.rmtree(runs / "tiny" / "drafters" / "sql")
    assert export(runs, tiny, "sql", overwrite=True)[0] == f"from the bundle {main}"


def test_all_drafters_are_written_or_none_and_each_is_named_by_its_folder_too(runs, tiny):
    export(runs, tiny, str(runs / "tiny" / "drafters" / "sql"), weights="bfloat16")
    with pytest.raises(ArtifactError, match="sql-sglang exists already; type overwrite=true"):
        export(runs, tiny, "")  # all drafters: general comes first and could be written
    exports = runs / "tiny" / "exports"
    assert os.listdir(exports) == ["sql-sglang"]
    lines = export(runs, tiny, "", overwrite=True)
    assert [line.partition(": drafter ")[2].partition(",")[0] for line in lines[::2]] == ["sql", "general"]
    assert sorted(os.listdir(exports)) == ["general-sglang", "sql-sglang"]


def test_a_copy_of_a_drafter_is_exported_by_the_name_of_its_folder(runs, tiny, tmp_path):
    drafters = runs / "tiny" / "drafters"
    shutil.copytree(drafters / "sql", drafters / "sql-old")
    export(runs, tiny, "")
    assert sorted(os.listdir(runs / "tiny" / "exports")) == ["general-sglang", "sql-old-sglang", "sql-sglang"]
    for copy in ("a", "b"):
        shutil.copytree(drafters / "general", tmp_path / copy / "general")
    with pytest.raises(ConfigError, match="two drafters are named general; name one of them"):
        pool = PoolConfig(drafters=[str(tmp_path / copy / "general") for copy in ("a", "b")])
        export(runs, tiny, "", pool=pool, overwrite=True)


def test_a_killed_export_is_finished_by_the_same_command(runs, tiny):
    export(runs, tiny, "")
    exports = runs / "tiny" / "exports"
    general = load_file(exports / "general-sglang" / "model.safetensors")
    shutil.rmtree(exports / "sql-sglang")  # as if it had been killed before the second drafter
    export(runs, tiny, "")
    assert sorted(os.listdir(exports)) == ["general-sglang", "sql-sglang"]
    again = load_file(exports / "general-sglang" / "model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in general.items())


def test_an_earlier_export_is_replaced_only_with_overwrite(runs, tiny, tmp_path):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may be filled
    export(runs, tiny, "general", out)
    with pytest.raises(ArtifactError, match="exists already; type overwrite=true"):
        export(runs, tiny, "sql", out)
    assert config_in(out)["torch_dtype"] == "bfloat16"
    export(runs, tiny, "sql", out, overwrite=True)
    assert config_in(out)["torch_dtype"] == "float32"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


@pytest.mark.parametrize("theirs", ["another file", "a head of another program", "a file of that name", "a drafter"])
def test_a_folder_that_is_no_export_is_never_replaced(runs, tiny, tmp_path, theirs):
    out = tmp_path / "out"
    if theirs == "a file of that name":
        out.write_text("mine")
    elif theirs == "a drafter":
        out = runs / "tiny" / "drafters" / "general"
    else:
        export(runs, tiny, "general", out)
        if theirs == "another file":
            (out / "notes.txt").write_text("mine")
        else:
            save_file(load_file(out / "model.safetensors"), out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="exists and is not an export"):
        export(runs, tiny, "general", out, overwrite=True)
    assert out.exists()


def test_an_export_that_fails_leaves_the_earlier_export(runs, tiny, tmp_path):
    out = tmp_path / "out"
    export(runs, tiny, "general", out)
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(KeyError), write_export(out, overwrite=True) as folder:
        (folder / "config.json").write_text("{")
        raise KeyError
    assert (out / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


# Mistakes.


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ({"format": "onnx"}, "format must be one of bundle, tar, vllm-pool, sglang, vllm, got 'onnx'"),
        ({"layout": "plain"}, "layout=plain is read by format=vllm only"),
        ({"format": "vllm", "layout": "hf"}, "layout must be one of"),
        ({"licence": "MIT"}, "licence=MIT is read by format=bundle|tar|vllm-pool only, not by format=sglang"),
        ({"format": "tar"}, "drafter=general is read by format=sglang|vllm only, not by format=tar; leave it out"),
        ({"format": "vllm-pool"}, "drafter=general is read by format=sglang|vllm only, not by format=vllm-pool"),
        ({"weights": "int8"}, "weights must be one of auto, bfloat16, float32, got 'int8'"),
    ],
)
def test_an_unknown_format_is_refused(runs, tiny, typed, line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        export(runs, tiny, "general", **typed)
    with pytest.raises(ConfigError, match=r"weights=float32 is read by format=sglang\|vllm only"):
        ExportConfig(weights="float32")


def test_a_drafter_without_an_eagle_3_head_is_refused(runs, tiny, facts, drafter):
    write_drafter(runs, facts, drafter, "datastore", drafter={"kind": "retrieval"})
    with pytest.raises(ArtifactError, match="retrieval drafter, which format=sglang cannot hold; no format for other"):
        export(runs, tiny, "datastore")
    write_drafter(runs, facts, drafter, "blocks", drafter={"kind": "block"})
    with pytest.raises(ArtifactError, match="block drafter, which format=sglang cannot hold; type format=vllm"):
        export(runs, tiny, "blocks")
    shutil.rmtree(runs / "tiny" / "drafters" / "general")
    shutil.rmtree(runs / "tiny" / "drafters" / "sql")
    with pytest.raises(
        ArtifactError, match=r"has no drafter that format=sglang can hold \(eagle3\); type `drafterforge"
    ):
        export(runs, tiny, "")
    with pytest.raises(ArtifactError, match="no drafters named 'none'"):
        export(runs, tiny, "none")


def test_the_suite_of_vllm_leaves_block_drafters_out(runs, tiny, facts, drafter, capsys):
    write_drafter(runs, facts, drafter, "blocks", drafter={"kind": "block"})
    pool = PoolConfig(drafters=["general", "blocks", "retrieval"])
    cfg = EvaluateConfig(target=config_of(tiny), pool=pool, runs_dir=str(runs))
    assert names_in_runs(cfg, facts) == ["general"]
    assert "suite=vllm times EAGLE-3 drafters only; it leaves out blocks" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match="has no EAGLE-3 drafter for tiny"):
        names_in_runs(dataclasses.replace(cfg, pool=PoolConfig(drafters=["blocks"])), facts)


def test_a_drafter_of_another_target_is_refused(runs, facts, drafter, tiny):
    write_drafter(runs, dataclasses.replace(facts, fingerprint="f00d"), drafter, "other")
    with pytest.raises(ArtifactError, match="fingerprint f00d"):
        export(runs, tiny, "other")


def test_the_embedding_of_a_target_is_found_by_its_name(tmp_path):
    more = {f"model.layers.{layer}.embed_tokens.weight": torch.zeros(3, 2) for layer in (7, 8)}
    save_file({"model.embed_tokens.weight": torch.ones(3, 2), **more}, tmp_path / "model.safetensors")
    assert target_embedding(tmp_path).all()
    save_file({"model.language_model.embed_tokens.weight": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    assert target_embedding(tmp_path).all()
    save_file(more, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"has 2 tensors named \*embed_tokens.weight"):
        target_embedding(tmp_path)
    save_file({"wte.weight": torch.zeros(3, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"has 0 tensors named \*embed_tokens.weight"):
        target_embedding(tmp_path)


def test_a_targets_facts_are_those_of_its_files(tiny, facts):
    from drafterforge.targets.load import load_target

    loaded = load_target(config_of(tiny))
    assert (facts.name, facts.fingerprint, facts.model) == ("tiny", loaded.fingerprint, str(tiny))
    assert torch.equal(facts.embedding.to(loaded.dtype), loaded.backbone.embedding)
    assert read_target(config_of(tiny)).dtype == "float32"
