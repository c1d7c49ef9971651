"""Write a question file of each of MMLU's tasks, as `eval suite=papers suite.questions=OUT` reads them.

    python scripts/mmlu_questions.py TEST OUT

TEST is the folder `test` of MMLU (MIT): TASK_test.csv with lines of a question, four choices and the answer.  OUT gets
mmlu_TASK.jsonl, each line a question with its choices, which asks to explain the answer so that there are tokens to
decode.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

END = "_test.csv"
REQUEST = "Choose the right answer, and explain it."


def main() -> int:
    """Write the files, and print how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", type=Path, metavar="TEST")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args()
    paths = sorted(options.test.glob(f"*{END}"))
    if not paths:
        print(f"{options.test} has no *{END}; type the folder `test` of MMLU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        task = path.name.removesuffix(END)
        with open(path, newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if len(line) == 6 and line[-1] != "answer"]
        if not lines:
            print(f"{path} has no lines of a question, four choices and an answer", file=sys.stderr)
            return 2
        questions = [question_of(task, number, line) for number, line in enumerate(lines)]
        (options.out / f"mmlu_{task}.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    print(f"{options.out}: {len(paths)} tasks")
    return 0


def question_of(task: str, number: int, line: list[str]) -> dict[str, object]:
    """A line of a question file.  line: question, four choices, answer."""
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", line[1:5], strict=True))
    text = f"{line[0].strip()}\n{choices}\n{REQUEST}"
    return {"id": f"mmlu-{task}-{number}", "domain": "science", "turns": [text], "category": task, "licence": "MIT"}


if __name__ == "__main__":
    sys.exit(main())
