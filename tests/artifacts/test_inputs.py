"""What a config names is looked for before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.inputs import check_inputs
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.cli import COMMANDS
from drafterforge.config.compose import load_config
from drafterforge.errors import DrafterforgeError

TRAIN = ["train-drafter", "domain=sql"]
MISTAKES = {
    "path=no.jsonl: there is no such file or folder": [*TRAIN, "data=jsonl", "path=no.jsonl"],
    "latency.path=no.json: there is no such file": ["train-policy", "latency.path=no.json"],
    "target.model=./nowhere is not a folder": ["generate", "prompt=x", "target=hf", "target.model=./nowhere"],
    "target=hf needs a model": ["generate", "prompt=x", "target=hf"],
    "no drafters named 'nowhere'": [*TRAIN, "drafter.init=nowhere"],
    "no answers named 'nowhere'": [*TRAIN, "answers=[nowhere]"],
    "type `drafterforge prepare-data domain=sql name=b data=jsonl path=FILE`": [
        *TRAIN,
        "val_answers=b",
        "runs_dir=r",
    ],
    "type `val_answers=[a,b] for several artifacts`": [*TRAIN, "val_answers='a,b'"],
    "no drafters named 'none'": ["train-policy", "drafter=none"],
    "no drafters named 'no'": ["calibrate", "drafter=no"],
    "did you mean sql? If not, type": ["generate", "prompt=x", "drafter=sqll+store"],
    "If not, type `drafterforge train-drafter domain=kubernetes data=jsonl path=FILE name=generall`": [
        *["train-drafter", "domain=kubernetes", "data=jsonl", "path=.", "drafter.init=generall"],
    ],
    "no drafters named 'nobody'": ["serve", "drafter=nobody"],
    "no bundle named 'nobody' for target": ["serve", "bundle=nobody"],
    "no drafters at './nowhere'": [*TRAIN, "drafter.init=./nowhere"],
    "temperature must be >= 0, got -1": ["generate", "prompt=x", "temperature=-1"],
    "top_p must be in (0, 1], got 0": ["generate", "prompt=x", "top_p=0"],
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_is_missing_or_out_of_range_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *typed = MISTAKES[words]
    row = COMMANDS[command]
    with pytest.raises(DrafterforgeError) as refused:
        check_inputs(load_config(row.name, row.config, typed), row.reports)
    assert words in str(refused.value)


def test_a_missing_file_is_told_without_torch(tmp_path):
    code = (
        "import sys; from drafterforge.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    typed = ["prepare-data", "domain=own", "data=jsonl", f"path={tmp_path / 'none.jsonl'}"]
    done = subprocess.run([sys.executable, "-c", code, *typed], capture_output=True, text=True)
    assert done.returncode == 2 and "none.jsonl: there is no such file or folder" in done.stderr


def test_what_is_there_passes(tmp_path):
    (tmp_path / "own.jsonl").write_text("{}")
    row = COMMANDS["train-drafter"]
    typed = ["domain=sql", "data=jsonl", f"path={tmp_path}", "drafter=lora"]  # of the shipped generalist
    check_inputs(load_config(row.name, row.config, typed))
    generate = COMMANDS["generate"]
    for drafter in ("auto", "pool", "", "retrieval", "general+retrieval", "general+store", str(tmp_path)):
        check_inputs(load_config(generate.name, generate.config, ["prompt=x", f"drafter={drafter}"]))
    router = COMMANDS["train-policy"]  # which reads no drafter
    check_inputs(load_config(router.name, router.config, ["policy=router", "target=hf", "target.model=."]))


@pytest.mark.parametrize("recorded", [{"name": "kubernetes"}, "kubernetes"], ids=["prepared", "streamed"])
def test_a_domain_of_given_answers_is_accepted_and_another_one_refused(tmp_path, recorded):
    settings = {"target": "smollm2-135m", "target_fingerprint": "f00d", "metrics": {"domains": {"pods": 3}}}
    path = artifact_dir(tmp_path, "smollm2-135m", "answers", "kubernetes")
    with write_artifact(path, kind="answers", name="kubernetes", config={"domain": recorded}, **settings):
        pass
    row = COMMANDS["train-drafter"]

    def check(domain: str) -> None:
        typed = [f"domain={domain}", "answers=kubernetes", "name=sig", f"runs_dir={tmp_path}"]
        check_inputs(load_config(row.name, row.config, typed), row.reports)

    for domain in ("kubernetes", "pods", "general"):
        check(domain)
    expected = r"no domain named 'sql' in answers=kubernetes \(have: kubernetes, pods\)"
    with pytest.raises(DrafterforgeError, match=expected):  # a domain of the package, which these answers lack
        check("sql")
    with pytest.raises(
        DrafterforgeError, match="no domain named 'kubernets' in answers=kubernetes; did you mean kubern"
    ):
        check("kubernets")
