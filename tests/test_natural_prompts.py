"""Natural prompts: what is read of clones and of folders, and that no prompt is also a question."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.test_scripts import SCRIPTS, import_script

PUBMEDQA, NL2BASH = "pubmedqa/pubmedqa", "TellinaTool/nl2bash"


@pytest.fixture
def script(monkeypatch):
    return import_script(next(path for path in SCRIPTS if path.stem == "natural_prompts"), monkeypatch)


@pytest.fixture
def clone(tmp_path) -> Path:
    folder = tmp_path / "clone"
    (folder / "data").mkdir(parents=True)
    table = {str(i): {"CONTEXTS": [f"Text {i}."], "QUESTION": f"Is it {i}?"} for i in range(125)}
    table["long"] = {"CONTEXTS": ["word " * 301], "QUESTION": "Is it long?"}
    (folder / "data" / "ori_pqal.json").write_text(json.dumps(table))
    (folder / "data" / "bash").mkdir()
    (folder / "data" / "bash" / "all.nl").write_text("".join(f"List {i} files. \n\n" for i in range(125)))
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "data")):
        subprocess.run([*git, *words], check=True)
    return folder


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def line_of(domain: str, text: str, **more: str) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "domain": domain, "source": "GSM8K", "licence": "MIT"} | more


def test_prompts_of_clones_and_folders_are_no_questions(script, clone, tmp_path):
    also, held_out, out = tmp_path / "also", tmp_path / "held-out", tmp_path / "out"
    rows = [line_of("code", "Sort\u2028a list."), line_of("code", "Twice."), line_of("code", "x", source="own grammar")]
    for folder, content in ((also, rows), (held_out, [line_of("code", "Twice."), line_of("code", "y", variant="ood")])):
        folder.mkdir()
        (folder / "code.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content))
    assert script.main([str(out), f"{PUBMEDQA}={clone}", "--also", str(also), "--held-out", str(held_out)]) == 0
    prompts, questions = lines(out / "prompts" / "python.jsonl"), lines(out / "questions" / "python.jsonl")
    assert prompts == [line_of("python", "Sort\u2028a list.")]
    assert [question["turns"] for question in questions] == [["Twice."]]
    prompts, questions = lines(out / "prompts" / "clinical.jsonl"), lines(out / "questions" / "clinical.jsonl")
    assert (len(prompts), len(questions)) == (5, 120)  # without the long one
    texts = {prompt["messages"][0]["content"] for prompt in prompts}
    assert not texts & {question["turns"][0] for question in questions}
    assert {(prompt["source"], prompt["licence"]) for prompt in prompts} == {(PUBMEDQA, "MIT")}


def test_passages_join_texts_of_prompts_with_one_question_or_instruction(script, clone, tmp_path):
    also, out = tmp_path / "also", tmp_path / "out"
    also.mkdir()
    rows = [line_of("summarization", f"Summarize: Abstract {i}.") for i in range(62)]
    rows += [line_of("summarization", f"Say it briefly.\n\nA longer abstract {i}.") for i in range(62)]
    (also / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(out), f"{PUBMEDQA}={clone}", "--also", str(also)]
    assert script.main(arguments) == 0 and not (out / "prompts" / "passages.jsonl").exists()
    assert script.main([*arguments, "--passages"]) == 0
    assert not (out / "questions" / "passages.jsonl").exists()
    prompts = {line["messages"][0]["content"]: line["source"] for line in lines(out / "prompts" / "passages.jsonl")}
    questions = lines(out / "questions" / "clinical.jsonl") + lines(out / "questions" / "summarization.jsonl")
    held_out = {question["turns"][0].split("\n\n")[0].removeprefix("Summarize: ") for question in questions}
    for prompt, source in prompts.items():
        first, *texts, last = prompt.split("\n\n")
        if source == PUBMEDQA:
            assert first.startswith("Text ") and last.startswith("Is it ")
            texts = [first, *texts]
        else:
            assert first in ("Summarize:", "Say it briefly:")
            texts = [*texts, last]
        assert 2 <= len(texts) <= 5 and not held_out & {*texts}


def test_lines_of_text_are_prompts(script, clone, tmp_path):
    assert script.main([str(tmp_path / "out"), f"{NL2BASH}={clone}"]) == 0
    prompts = lines(tmp_path / "out" / "prompts" / "shell.jsonl")
    texts = {prompt["messages"][0]["content"] for prompt in prompts}
    assert len(prompts) == 5 and all(text.startswith("List ") and "\nAnswer with" in text for text in texts)


def test_another_repository_and_a_clone_without_the_file_are_one_line(script, clone, tmp_path, capsys):
    assert script.main([str(tmp_path / "out"), f"someone/else={clone}"]) == 2
    assert "someone/else is not read; type one of TellinaTool/nl2bash" in capsys.readouterr().err
    assert script.main([str(tmp_path / "out"), f"teknium1/GPTeacher={clone}"]) == 2
    assert "clone teknium1/GPTeacher whole" in capsys.readouterr().err
    assert script.main([str(tmp_path / "out"), "--also", str(tmp_path / "nowhere")]) == 2
    assert "has no file NAME.jsonl" in capsys.readouterr().err
    (tmp_path / "code.jsonl").write_text('{"prompt": "x"}\n')
    assert script.main([str(tmp_path / "out"), "--also", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
