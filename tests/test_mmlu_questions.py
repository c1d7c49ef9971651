"""`mmlu_questions.py` writes a question file of each task."""

from __future__ import annotations

import pytest

from drafterforge.data.questions import load_questions
from tests.test_scripts import SCRIPTS, import_script


@pytest.fixture
def main(tmp_path, monkeypatch):
    module = import_script(next(path for path in SCRIPTS if path.stem == "mmlu_questions"), monkeypatch)
    monkeypatch.setattr("sys.argv", ["mmlu_questions.py", str(tmp_path / "test"), str(tmp_path / "out")])
    (tmp_path / "test").mkdir()
    return module.main


def test_each_task_becomes_a_file_that_eval_reads(main, tmp_path):
    header = "question,choice0,choice1,choice2,choice3,answer\n"
    for task, begin in (("anatomy", ""), ("virology", header)):
        lines = [f'"Which one, {number}?",a,b,c,d,B\n' for number in range(3)]
        (tmp_path / "test" / f"{task}_test.csv").write_text(begin + "".join(lines))
    assert main() == 0
    questions = load_questions(tmp_path / "out", limit=2)
    assert [question.column for question in questions] == ["mmlu_anatomy"] * 2 + ["mmlu_virology"] * 2
    assert "A. a\nB. b\nC. c\nD. d\n" in questions[0].turns[0]


def test_a_folder_without_questions_is_one_line(main, tmp_path, capsys):
    assert main() == 2 and "has no *_test.csv; type the folder `test` of MMLU" in capsys.readouterr().err
    (tmp_path / "test" / "anatomy_test.csv").write_text("a,b\n")
    assert main() == 2 and "has no lines of a question, four choices" in capsys.readouterr().err
