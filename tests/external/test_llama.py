"""llama.cpp's converter turns an export into its own format with the same weights."""

from __future__ import annotations

import subprocess

import gguf
import numpy as np
import pytest
import torch

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_drafter
from drafterforge.interop.layout import read_target
from tests.external.conftest import Client

pytestmark = pytest.mark.external
NAMES = {
    "fc": "fc",
    "output": "lm_head",
    "output_norm": "norm",
    "blk.0.attn_q": "midlayer.self_attn.q_proj",
    "blk.0.attn_k": "midlayer.self_attn.k_proj",
    "blk.0.attn_v": "midlayer.self_attn.v_proj",
    "blk.0.attn_output": "midlayer.self_attn.o_proj",
    "blk.0.attn_norm": "midlayer.input_layernorm",
    "blk.0.attn_norm_2": "midlayer.hidden_norm",
    "blk.0.ffn_norm": "midlayer.post_attention_layernorm",
    "blk.0.ffn_gate": "midlayer.mlp.gate_proj",
    "blk.0.ffn_up": "midlayer.mlp.up_proj",
    "blk.0.ffn_down": "midlayer.mlp.down_proj",
}


@pytest.fixture(scope="module")
def client() -> Client:
    return Client("llama").require()


@pytest.mark.parametrize(("format", "layout"), [("sglang", ""), ("vllm", "speculators")])
@pytest.mark.parametrize("name", ["general", "sql"])
def test_the_converted_file_holds_the_drafter(client, exported, tmp_path, name, format, layout):
    source = client.folder / "source" / "vendor" / "llama.cpp"
    facts, out = read_target(TargetConfig()), tmp_path / "drafter.gguf"
    where = [exported(name, format, layout), "--target-model-dir", facts.model, "--outtype", "f32", "--outfile", out]
    done = subprocess.run(
        [client.python, source / "convert_hf_to_gguf.py", *where],
        env=client.env(PYTHONPATH=str(source / "gguf-py")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    read = gguf.GGUFReader(out)
    keys = ("target_layers", "target_hidden_size", "norm_before_residual", "context_length", "rope.freq_base")
    fields = {key: read.fields[f"eagle3.{key}"].contents() for key in keys}
    assert fields == dict(zip(keys, ([2, 15, 27], 576, False, 8192, 100000.0), strict=True))
    drafter = load_drafter(SHIPPED / "smollm2-135m" / "drafters" / name, facts.embedding)
    tensors = {tensor.name.removesuffix(".weight"): np.array(tensor.data) for tensor in read.tensors}
    assert torch.equal(torch.from_numpy(tensors.pop("d2t")), drafter.token_ids)
    if format == "vllm":
        assert torch.equal(torch.from_numpy(tensors.pop("token_embd")), facts.embedding)
    assert tensors.keys() == NAMES.keys()
    for theirs, ours in NAMES.items():
        expected = drafter.state_dict()[f"{ours}.weight"]
        if ours.endswith(("q_proj", "k_proj")):  # llama.cpp rotates pairs of neighbours, we rotate halves
            heads = expected.shape[0] // drafter.spec.head_dim
            expected = expected.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        assert torch.equal(torch.from_numpy(tensors[theirs]), expected), theirs
