"""A router's features, probabilities and files; files of other targets or with damage are refused."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.router.features import TextEncoder, prompt_features, request_text
from drafterforge.router.net import RouterNet
from drafterforge.router.router import Router
from tests.tiny import build_tokenizer

LABELS = ["sql", "math", "chat"]
HIDDEN = 4  # of the target


def net(width: int = HIDDEN, hidden: int = 0) -> RouterNet:
    network = RouterNet(width, len(LABELS), hidden)
    network.normalise(torch.randn(9, width) * 3 + 1)
    for parameter in network.parameters():
        parameter.data.normal_()
    network.temperature.fill_(1.7)
    return network


def router(hidden: int = 0) -> Router:
    return Router(net(hidden=hidden), LABELS, target="tiny", target_fingerprint="aa")


@pytest.fixture
def saved(tmp_path) -> Path:
    router().save(tmp_path)
    return tmp_path


def save_encoder(folder: Path, seed: int = 0, safe: bool = True) -> Path:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    model = BertModel(config)
    if safe:
        model.save_pretrained(folder)
    else:
        folder.mkdir()
        config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    tokenizer.save_pretrained(folder)
    return folder


# --- features ------------------------------------------------------------------------------------


def test_features_are_the_high_tap_of_the_last_position_at_unit_rms():
    features = torch.randn(5, 3 * HIDDEN)
    high = features[4, 2 * HIDDEN :]
    expected = high / high.square().mean().sqrt()
    torch.testing.assert_close(prompt_features(features, HIDDEN), expected, atol=1e-5, rtol=1e-5)


def test_features_depend_on_earlier_tokens_only_through_the_target():
    features = torch.randn(5, 3 * HIDDEN)
    assert torch.equal(prompt_features(features, HIDDEN), prompt_features(features[-1:], HIDDEN))


def test_features_of_half_precision_are_float32():
    assert prompt_features(torch.randn(3, 12).bfloat16(), 4).dtype == torch.float32


# --- probabilities ---------------------------------------------------------------------------------


def test_temperature_flattens_the_probabilities_and_leaves_the_best_label():
    network, pooled = net(), torch.randn(20, HIDDEN)
    sharp = network.probabilities(pooled)
    network.temperature.fill_(9.0)
    flat = network.probabilities(pooled)
    assert torch.equal(sharp.argmax(dim=1), flat.argmax(dim=1))
    assert (flat.max(dim=1).values < sharp.max(dim=1).values).all()
    torch.testing.assert_close(flat.sum(dim=1), torch.ones(20))


def test_a_feature_that_was_constant_in_training_stays_finite():
    network = RouterNet(2, 2)
    network.normalise(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
    assert torch.isfinite(network(torch.tensor([[1.5, 5.1]]))).all() and network.std.min() > 0


def test_a_label_without_its_drafter_gives_its_probability_to_the_generalist_or_to_all():
    policy = router()
    assert policy.label_shares(["math", "sql", "chat"]).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert policy.label_shares(["general", "sql"]).tolist() == [[0, 1], [1, 0], [1, 0]]
    assert policy.label_shares(["sql", "retrieval"]).tolist() == [[1, 0], [0.5, 0.5], [0.5, 0.5]]
    assert policy.label_shares(["general+retrieval", "sql+retrieval"]).tolist() == [[0, 1], [1, 0], [1, 0]]
    assert policy.label_shares(["general", "sql+retrieval", "sql"]).tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]


def test_probabilities_of_a_pool_sum_to_one():
    policy, features = router(), torch.randn(7, 3 * HIDDEN)
    for pool in (LABELS, ["general", "sql"], ["retrieval", "math", "other"]):
        probs = policy.drafter_probs(features, pool)
        assert probs.shape == (len(pool),) and probs.min() >= 0
        np.testing.assert_allclose(probs.sum(), 1.0)
    np.testing.assert_allclose(policy.drafter_probs(features, LABELS), policy.probabilities(features))


def test_a_pool_without_a_label_of_the_router_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="knows sql, math, chat, but the pool has retrieval"):
        router().label_shares(["retrieval"])
    with pytest.raises(ConfigError, match="no drafter"):
        router().label_shares([])


@pytest.mark.parametrize("labels", [["sql"], ["sql", "sql", "math"], ["sql", "math"], ["sql", "math", 3]])
def test_labels_that_do_not_fit_are_refused_in_one_line(labels):
    with pytest.raises(ConfigError, match="labels"):
        Router(net(), labels)


@pytest.mark.parametrize("prompt", [torch.randn(5, 9), torch.randn(0, 12), torch.randn(12), "Hello"])
def test_a_prompt_of_the_wrong_kind_or_shape_is_refused_in_one_line(prompt):
    with pytest.raises(ConfigError, match="this router reads"):
        router().probabilities(prompt)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [0, 5])
def test_a_saved_router_gives_the_same_probabilities(tmp_path, hidden):
    policy, features = router(hidden), torch.randn(7, 3 * HIDDEN)
    policy.save(tmp_path)
    opened = Router.load(tmp_path, "aa")
    assert opened.labels == LABELS and opened.kind == "target" and opened.target == "tiny"
    assert np.array_equal(opened.probabilities(features), policy.probabilities(features))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["router.json", "router.safetensors"]


def change_spec(folder: Path, **changes: object) -> None:
    path = folder / "router.json"
    spec = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in spec.items() if value is not None}))


def assert_refused(folder: Path, message: str, *arguments: object) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)) as caught:
        Router.load(folder, *arguments)
    assert "\n" not in str(caught.value)


def test_a_router_of_another_target_is_refused(saved):
    assert_refused(
        saved, "reads features of target 'tiny' with fingerprint aa, but this target has fingerprint bb", "bb"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 99}, "schema version 99, but this drafterforge reads up to 1"),
        ({"pooling": 7}, "was trained with pooling 7"),
        ({"labels": None}, "missing or unknown keys: labels"),
        ({"surprise": 1}, "missing or unknown keys: surprise"),
        ({"labels": "sql"}, "labels is no list"),
        ({"labels": ["sql", "sql", "chat"]}, "at least two labels, each once"),
        ({"labels": ["sql", "chat"]}, "head.bias is [3, 'torch.float32'], wanted [2, 'torch.float32']"),
        ({"kind": "mood"}, "kind 'mood'"),
        ({"width": 12}, "wanted [3, 12, 'torch.float32']"),
        ({"width": "12"}, "width is no int"),
        ({"hidden": 8}, "missing or unexpected tensors"),
        ({"hidden": -1}, "hidden -1"),
    ],
)
def test_a_changed_description_is_refused_in_a_line(saved, changes, message):
    change_spec(saved, **changes)
    assert_refused(saved, message)


@pytest.mark.parametrize("content", [b"{", b"[]", b"3"])
def test_an_unreadable_description_is_refused_in_one_line(saved, content):
    (saved / "router.json").write_bytes(content)
    assert_refused(saved, "router")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": torch.ones(2)}, "missing or unexpected tensors: extra"),
        ({"mean": torch.ones(4).half()}, "mean is [4, 'torch.float16']"),
        ({"mean": torch.full((4,), float("nan"))}, "mean is not finite"),
        ({"std": torch.zeros(4)}, "std and temperature must be > 0"),
        ({"temperature": torch.tensor(-1.0)}, "std and temperature must be > 0"),
    ],
)
def test_changed_weights_are_refused_in_a_line(saved, changes, message):
    path = saved / "router.safetensors"
    save_file(load_file(path) | changes, path)
    assert_refused(saved, message)


def test_missing_or_cut_weights_are_refused_in_a_line(saved):
    path = saved / "router.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    assert_refused(saved, "is no readable router")
    path.unlink()
    assert_refused(saved, "is no readable router")


# --- text encoders -------------------------------------------------------------------------------


def test_a_text_becomes_the_mean_of_the_encoder_s_last_states(tmp_path):
    encoder = TextEncoder.open(str(save_encoder(tmp_path / "bert")))
    ids = encoder.tokenizer("Count the users.", return_tensors="pt")["input_ids"]
    states = encoder.model(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(encoder("Count the users."), states.mean(dim=0))
    assert encoder("x" * 999).shape == (encoder.width,) == (16,)  # longer than the encoder's window


def test_an_encoder_reads_all_messages_of_the_user():
    talk = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Sum 1 and 2.")]
    assert request_text([{"role": role, "content": text} for role, text in talk]) == "Hi\nSum 1 and 2."


def test_a_saved_router_over_texts_gives_the_same_probabilities_with_any_target(tmp_path):
    folder = save_encoder(tmp_path / "bert")
    text_router = Router(
        net(width=16), LABELS, target="tiny", target_fingerprint="aa", encoder=TextEncoder.open(str(folder))
    )
    text_router.save(tmp_path)
    opened = Router.load(tmp_path, "bb")
    assert opened.kind == "text"
    assert np.array_equal(opened.probabilities("Count."), text_router.probabilities("Count."))
    moved = folder.rename(tmp_path / "moved")
    assert_refused(tmp_path, f"router.encoder={folder} is no folder")
    assert Router.load(tmp_path, encoder=str(moved)).encoder.source == str(moved)
    with pytest.raises(ConfigError, match="this router reads texts"):
        opened.probabilities(torch.randn(5, 12))


def test_another_encoder_is_refused_in_a_line(tmp_path):
    encoder = TextEncoder.open(str(save_encoder(tmp_path / "bert")))
    Router(net(width=16), LABELS, encoder=encoder).save(tmp_path)
    assert_refused(tmp_path, f"but {tmp_path / 'other'} has", None, str(save_encoder(tmp_path / "other", seed=1)))


def test_an_encoder_names_no_attention_kernel(tmp_path):
    path = save_encoder(tmp_path / "bert") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attn_implementation": "someone/kernel"}))
    encoder = TextEncoder.open(str(tmp_path / "bert"))
    assert encoder.model.config._attn_implementation == "sdpa" and encoder("a").shape == (16,)


def test_an_encoder_of_another_width_is_refused_in_one_line(tmp_path):
    encoder = TextEncoder.open(str(save_encoder(tmp_path / "bert")))
    with pytest.raises(ConfigError, match=r"reads 4 features, but .* has 16"):
        Router(net(), LABELS, encoder=encoder)


def test_pickled_weights_are_refused_in_a_line(tmp_path):
    folder = save_encoder(tmp_path / "bert", safe=False)
    with pytest.raises(ArtifactError, match="cannot be loaded as a text encoder") as caught:
        TextEncoder.open(str(folder))
    assert "\n" not in str(caught.value)


def test_an_encoder_that_lacks_weights_is_refused_in_a_line(tmp_path):
    path = save_encoder(tmp_path / "bert") / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"has no weights for encoder\.layer\.1\.output\.dense\.weight"):
        TextEncoder.open(str(tmp_path / "bert"))


def test_the_encoder_that_a_router_s_file_names_is_never_downloaded(tmp_path, monkeypatch):
    encoder = TextEncoder.open(str(save_encoder(tmp_path / "bert")))
    encoder.source = "someone/encoder"
    Router(net(width=16), LABELS, encoder=encoder).save(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **options: pytest.fail(f"looked up {address}"))
    assert_refused(tmp_path, "downloaded before: type `hf download someone/encoder`")


@pytest.mark.parametrize("source", ["/" + "x" * 5000, "~no-such-user/x", "x" * 5000, "a/b/c"])
def test_a_forged_name_of_an_encoder_is_refused(tmp_path, source):
    encoder = TextEncoder.open(str(save_encoder(tmp_path / "bert")))
    encoder.source = source
    Router(net(width=16), LABELS, encoder=encoder).save(tmp_path)
    with pytest.raises(ArtifactError, match=r"router.encoder=.* (is no folder|is not on this machine)") as caught:
        Router.load(tmp_path)
    assert len(str(caught.value)) < 600


def test_a_forged_header_is_quoted_in_part(tmp_path):
    Router(net(), LABELS, target="tiny", target_fingerprint="aa").save(tmp_path)
    header = json.dumps({"std": "x" * 5000}).encode()
    (tmp_path / "router.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ArtifactError) as caught:
        Router.load(tmp_path)
    assert len(str(caught.value)) < 600
