"""Training checkpoints are safetensors with Lightning's whole state; damaged ones are refused."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from drafterforge.errors import ArtifactError
from drafterforge.training.resume import SafetensorsCheckpointIO

STATE = {
    "epoch": 0,
    "lr": 1e-3,
    "infinite": float("-inf"),
    "none": None,
    "flags": [True, False],
    "betas": (0.9, 0.95),
    "empty": {"list": [], "tuple": (), "dict": {}},
    "by index": {0: {"exp_avg": torch.randn(3, 2), "step": torch.tensor(4.0)}, 1: {}},
    "half": torch.randn(5).bfloat16(),
    "ids": torch.arange(4),
    "view": torch.arange(12).view(3, 4).T,
    "none at all": torch.empty(0, 3),
}


def equal(left: object, right: object) -> bool:
    """Equal in structure, types and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path):
    path = tmp_path / "last.ckpt"
    SafetensorsCheckpointIO().save_checkpoint(STATE, path)
    assert equal(SafetensorsCheckpointIO().load_checkpoint(path), STATE)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    with safe_open(path, "pt") as file:  # readable by anyone, and no pickle
        assert len(list(file.keys())) == 6
    assert path.read_bytes()[:2] != b"\x80\x04"


def test_tensors_with_shared_storage_are_loaded_as_separate_ones(tmp_path):
    shared = torch.randn(4)
    SafetensorsCheckpointIO().save_checkpoint({"one": shared, "two": shared, "part": shared[:2]}, tmp_path / "x")
    back = SafetensorsCheckpointIO().load_checkpoint(tmp_path / "x")
    assert equal(back, {"one": shared, "two": shared, "part": shared[:2]})


def test_a_value_that_needs_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a set cannot be saved"):
        SafetensorsCheckpointIO().save_checkpoint({"x": {1, 2}}, tmp_path / "x")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["truncated", "empty", "other"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, damage):
    path = tmp_path / "last.ckpt"
    SafetensorsCheckpointIO().save_checkpoint(STATE, path)
    content = {"truncated": path.read_bytes()[:-9], "empty": b"", "other": b"PK\x03\x04 something else"}[damage]
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"last\.ckpt is no training checkpoint .*; delete .* to start again"):
        SafetensorsCheckpointIO().load_checkpoint(path)


def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    SafetensorsCheckpointIO().save_checkpoint({"step": 1}, path)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("drafterforge.training.resume.save_file", full)
    with pytest.raises(ArtifactError, match="the disk is full"):
        SafetensorsCheckpointIO().save_checkpoint({"step": 2}, path)
    assert SafetensorsCheckpointIO().load_checkpoint(path) == {"step": 1}


@pytest.mark.parametrize("where", ["tensor", "tree"])
def test_a_flipped_bit_is_refused(tmp_path, where):
    path = tmp_path / "last.ckpt"
    SafetensorsCheckpointIO().save_checkpoint({"lr": 0.25, "weights": torch.ones(1000)}, path)
    content = bytearray(path.read_bytes())
    content[-500 if where == "tensor" else content.index(b"0.25") + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"last\.ckpt is damaged .*; delete .* to start again"):
        SafetensorsCheckpointIO().load_checkpoint(path)


def test_a_checkpoint_of_a_version_without_digests_is_read(tmp_path):
    save_file({"t0": torch.ones(2)}, tmp_path / "last.ckpt", metadata={"checkpoint": '{"list": [{"tensor": "t0"}]}'})
    assert equal(SafetensorsCheckpointIO().load_checkpoint(tmp_path / "last.ckpt"), [torch.ones(2)])
