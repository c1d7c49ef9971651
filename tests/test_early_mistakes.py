"""Mistakes in what a command names are refused in one line before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

OK = json.dumps({"prompt": "Which query?"})
MISTAKES = {
    "generate needs a prompt": ["generate"],
    "no bundle at nothere.tar; expected a folder": ["generate", "prompt=x", "bundle=./nothere.tar"],
    "type drafter= for plain decoding": ["generate", "prompt=x", "drafter=none"],
    "pool.selector= is read by drafter=pool only": ["generate", "prompt=x", "pool.selector=ucbspec"],
    "did you mean 'ucbspec'?": ["generate", "prompt=x", "drafter=pool", "pool.selector=ucbspecc"],
    "the bundle has no drafter 'mine'; it has general, sql": ["generate", "prompt=x", "bundle=house", "drafter=mine"],
    "a bundle fixes pool.drafters": ["serve", "bundle=house", "pool.drafters=[general]"],
    "no drafters named 'mine'": ["export", "pool.drafters=[general,mine]"],
    "type `drafterforge train-policy policy=marginal name=nope`": ["export", "pool.scheduler=nope"],
    "type `drafterforge train-policy policy=router name=nope`": ["export", "pool.selector=router", "pool.router=nope"],
    "house exists already; type overwrite=true": ["export", "bundle=house"],
    "suite.methods has 'generalst'": ["eval", "suite=quick", "suite.methods=[generalst]"],
    "suite=papers needs question files": ["eval", "suite=papers"],
    "no question files at ./nothere": ["eval", "suite=papers", "suite.questions=./nothere"],
    "no reports named 'a'": ["eval", "compare=a,b"],
    "(available: chat, general,": ["inspect", "k8s"],
    "no drafters named 'nothere'": ["train-policy", "traces.drafters=[general,nothere]"],
    "so data=jsonl path=empty.jsonl would not be read; type `drafterforge prepare-data domain=own": [
        "train-drafter",
        "domain=own",
        "answers=A",
        "data=jsonl",
        "path=empty.jsonl",
    ],
    "data=hf dataset=me/mine name=OTHER`, then answers=[A,B,OTHER], or": [
        "quickstart",
        "answers=[A,B]",
        "data=hf",
        "dataset=me/mine",
        "column=text",
    ],
    "empty.jsonl has no prompts": ["train-drafter", "domain=own", "data=jsonl", "path=empty.jsonl"],
    "broken.jsonl, line 2: found no JSON": ["train-drafter", "domain=own", "data=jsonl", "path=broken.jsonl"],
    "no line of plain.jsonl has an assistant turn, which data.answers=given needs": [
        "train-drafter",
        "domain=own",
        "data=jsonl",
        "path=plain.jsonl",
        "data.answers=given",
    ],
    "keys.jsonl, line 1: found no messages (keys: text)": [
        "prepare-data",
        "domain=own",
        "data=jsonl",
        "path=keys.jsonl",
    ],
}
CODE = """
import json, sys
from drafterforge.cli import main
for arguments in json.loads(sys.argv[1]):
    print("", file=sys.stderr, flush=True)
    if main(arguments) != 2 or "torch" in sys.modules:
        sys.exit(f"{arguments}: accepted, or refused after torch was imported")
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The line of each mistake."""
    folder = tmp_path_factory.mktemp("work")
    bundle = folder / "runs" / "smollm2-135m" / "bundles" / "house"
    bundle.mkdir(parents=True)
    (bundle / "bundle.json").write_text(json.dumps({"drafters": [{"name": "general"}, {"name": "sql"}]}))
    texts = {"empty": "", "broken": f'{OK}\n{{"prompt": ', "keys": '{"text": "x"}', "plain": OK}
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(text)
    words = [sys.executable, "-c", CODE, json.dumps(list(MISTAKES.values()))]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return dict(zip(MISTAKES, done.stderr.split("\n\n"), strict=True))


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_before_torch_is_imported(errors, message):
    line = errors[message].strip()
    assert message in line and line.startswith("drafterforge: ") and "\n" not in line
