"""`check_answers.py` counts equal answers, and shows where and by how much the others differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafterforge.errors import ServerError
from drafterforge.runtime.engine import Engine
from drafterforge.targets.gaps import logit_gaps
from drafterforge.targets.load import wrap_model
from tests.models import tiny_model
from tests.server.conftest import serving
from tests.test_scripts import import_script
from tests.tiny import build_tokenizer

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_answers.py"
PROMPTS = [[*range(40 + number, 60 + number)] for number in range(6)]


def target_of(initializer_range: float = 0.02):
    tokenizer = build_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 4, "max_position_embeddings": 512}
    model = tiny_model(eos_token_id=None, initializer_range=initializer_range, **sizes)
    return wrap_model(model, tokenizer, name="tiny", folder=Path("nowhere"))


@pytest.fixture
def check_answers(monkeypatch):
    module = import_script(SCRIPT, monkeypatch)
    monkeypatch.setattr(module, "load_target", lambda config, tapped: target_of())
    monkeypatch.setattr(module, "held_out_prompts", lambda target, count, domains: PROMPTS[:count])
    return module


def test_equal_answers_are_counted(check_answers, tmp_path, capsys):
    path = tmp_path / "answers.json"
    with serving(Engine(target_of())) as server:
        arguments = [server.url, "--prompts", "6", "--max-new-tokens", "8", "--json", str(path)]
        assert check_answers.main(arguments) == 0
    assert "6 of 6 answers of tiny are equal (48 tokens" in capsys.readouterr().out
    figures = json.loads(path.read_text())["figures"]
    assert (figures["equal"], figures["largest_margin"], figures["left_out"]) == (6, 0.0, 0)


def test_a_difference_is_shown_with_the_margin_of_the_two_tokens(check_answers, monkeypatch, capsys):
    target = target_of()
    real = check_answers.BatchAnswerer.__call__

    def changed(answerer, prompts, limit, seed):
        answers = real(answerer, prompts, limit, seed)
        answers[2] = [*answers[2][:3], 65, *answers[2][4:]]
        return answers

    monkeypatch.setattr(check_answers.BatchAnswerer, "__call__", changed)
    monkeypatch.setattr(check_answers, "logit_gaps", lambda target, ids, start: [*logit_gaps(target, ids, start), 0.25])
    monkeypatch.setattr("drafterforge.data.endpoint_answerer.disagreement", lambda gaps: "")
    with serving(Engine(target)) as server:
        assert check_answers.main([server.url, "--prompts", "6", "--max-new-tokens", "8"]) == 1
        assert check_answers.main([server.url, "--prompts", "6", "--max-new-tokens", "8", "--margin", "1"]) == 0
    out = capsys.readouterr().out
    assert "5 of 6 answers" in out and "largest margin of a difference: 0.25" in out
    row = next(line for line in out.splitlines() if line.startswith("│ 2"))
    assert [cell.strip() for cell in row.strip("│").split("│")][1] == "3" and "0.25" in row


def test_a_server_of_other_weights_is_refused(check_answers):
    with serving(Engine(target_of(0.1))) as server, pytest.raises(ServerError, match="is not this target"):
        check_answers.main([server.url])
