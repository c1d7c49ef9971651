"""LoRA experts: adapters that peft trains and writes are read, merged and decoded with."""

from __future__ import annotations

import json

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.config.drafter import LoraConfig
from drafterforge.drafters.eagle3.lora import load_adapter, merge
from drafterforge.drafters.eagle3.train.lora import add_adapter, addition_of, base_of, load_additions, save_adapter
from drafterforge.errors import ArtifactError
from tests.models import tiny_drafter


def generalist_and_expert(target, config: LoraConfig):
    """A generalist, and an expert of it whose adapter is not zero."""
    torch.manual_seed(3)
    plain = tiny_drafter(target)
    torch.manual_seed(3)
    expert = add_adapter(tiny_drafter(target), config, seed=1)
    for name, parameter in expert.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        if "lora_B" in name:
            assert not parameter.any()  # an untrained adapter changes nothing
            parameter.data = (0.2 * torch.randn_like(parameter)).bfloat16().float()
        elif "lora_A" in name:
            parameter.data = parameter.data.bfloat16().float()
    return plain, expert


def outputs(drafter, hidden):
    """Outputs that depend on every projection."""
    doubled = torch.cat((hidden, hidden), dim=-1)
    attention = drafter.midlayer.self_attn
    mixed = drafter.fuse(hidden.repeat(1, 3)) + attention.o_proj(attention.q_proj(doubled))
    return drafter.logits(drafter.midlayer.mlp(mixed)), attention.k_proj(doubled), attention.v_proj(doubled)


@pytest.mark.parametrize("targets", [list(LoraConfig().targets), ["q_proj", "fc"]])
def test_a_loaded_adapter_gives_the_trained_expert(target, tmp_path, targets):
    config = LoraConfig(rank=3, alpha=6.0, targets=targets)
    plain, expert = generalist_and_expert(target, config)
    save_adapter(tmp_path / "adapter", expert, config, "general")
    dense_expert = merge(plain, load_adapter(tmp_path / "adapter", plain))
    hidden = torch.randn(5, plain.spec.hidden_size)
    for ours, theirs in zip(outputs(dense_expert, hidden), outputs(expert, hidden), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    addition = addition_of(expert.lm_head)
    head = base_of(expert.lm_head).weight + (addition.delta() if addition else 0)
    torch.testing.assert_close(dense_expert.lm_head.weight, head, rtol=1e-5, atol=1e-6)
    size = sum(path.stat().st_size for path in (tmp_path / "adapter").iterdir())
    assert size < 2 * sum(p.numel() for n, p in expert.named_parameters() if "lora_" in n) + 8000


def test_peft_itself_opens_the_files(target, tmp_path):
    config = LoraConfig(rank=2, alpha=4.0)
    plain, expert = generalist_and_expert(target, config)
    save_adapter(tmp_path / "adapter", expert, config, "general")
    hidden = torch.randn(5, plain.spec.hidden_size)
    expected = outputs(expert, hidden)
    opened = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").base_model.model
    for ours, theirs in zip(outputs(opened, hidden), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_loaded_adapter_can_be_trained_further(target, tmp_path):
    config = LoraConfig(rank=3, alpha=6.0, targets=["q_proj", "lm_head"])
    plain, expert = generalist_and_expert(target, config)
    save_adapter(tmp_path / "adapter", expert, config, "general")
    again = load_additions(add_adapter(plain, config, seed=2), tmp_path / "adapter")
    expected = dict(expert.named_parameters())
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, expected[name]) and parameter.requires_grad == ("lora_" in name), name


def test_every_tensor_of_the_adapter_is_trained(target):
    _, expert = generalist_and_expert(target, LoraConfig(rank=2))
    logits, k, v = outputs(expert, torch.randn(5, expert.spec.hidden_size))
    head = addition_of(expert.lm_head).delta().square().sum()
    (logits.square().sum() + k.square().sum() + v.square().sum() + head).backward()
    for name, parameter in expert.named_parameters():
        assert (parameter.grad is not None and parameter.grad.any()) == ("lora_" in name), name


def break_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def break_tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


KEY = "base_model.model.fc.lora_A.weight"
BROKEN = {
    "not a readable adapter": lambda folder: (folder / "adapter_config.json").unlink(),
    "describes LORA, use_dora=True; wanted plain LORA": lambda folder: break_config(folder, use_dora=True),
    "describes IA3": lambda folder: break_config(folder, peft_type="IA3"),
    "rank_pattern": lambda folder: break_config(folder, rank_pattern={"fc": 4}),
    "unexpected tensor: fc.weight": lambda folder: break_tensors(
        folder, lambda t: t.update({"fc.weight": torch.ones(2)})
    ),
    "fc has shapes": lambda folder: break_tensors(folder, lambda t: t.pop(KEY)),
    "adds to midlayer, which is not a projection": lambda folder: break_tensors(
        folder, lambda t: t.update({"base_model.model.midlayer.lora_A.weight": torch.ones(2, 2)})
    ),
    "holds no tensors": lambda folder: break_tensors(folder, lambda t: t.clear()),
    "wanted {'A': (5, ": lambda folder: break_config(folder, r=5),
}


@pytest.mark.parametrize("expected", BROKEN)
def test_other_files_are_refused_in_one_line(target, tmp_path, expected):
    config = LoraConfig(rank=2)
    plain, expert = generalist_and_expert(target, config)
    save_adapter(tmp_path / "adapter", expert, config, "general")
    BROKEN[expected](tmp_path / "adapter")
    with pytest.raises(ArtifactError) as caught:
        load_adapter(tmp_path / "adapter", plain)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_the_adapter_s_config_does_not_depend_on_python_s_hash_seed(target, tmp_path):
    config = LoraConfig(rank=2, targets=["q_proj", "lm_head", "up_proj", "fc", "down_proj"])
    _, expert = generalist_and_expert(target, config)
    save_adapter(tmp_path / "adapter", expert, config, "general")
    written = json.loads((tmp_path / "adapter/adapter_config.json").read_text())["target_modules"]
    assert written == ["down_proj", "fc", "lm_head", "q_proj", "up_proj"]
