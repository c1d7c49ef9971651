"""A mistake, a full disk or a signal: one line, an exit code, nothing half-written, and the next run finishes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from drafterforge.data import features
from drafterforge.drafters.eagle3 import checkpoint
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.training import loggers, resume
from tests.pipelines.conftest import PLAIN, TRAIN
from tests.programs import Program

PREPARE = ("prepare-data", "domain=sql", "experiment=smoke")
BRIEF = (*TRAIN, "eval.num_prompts=1", "eval.max_new_tokens=2")  # the same training as TRAIN


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*PREPARE, "domain=sqq"), "no domain named 'sqq'"),
        ((*PREPARE, "data.num_trian=3"), "did you mean data.num_train?"),
        ((*PREPARE, "data.num_train=many"), "data.num_train must be a whole number"),
        ((*PREPARE, "target.dtype=int4"), "target.dtype must be one of"),
        ((*PREPARE, "target.device=abacus"), "target.device='abacus' is not a device"),
        ((*PREPARE, "domain=medical", "domain.grammar=false"), "domain=medical has no prompt grammar"),
        ((*PREPARE, "name=a/b"), "name must be a plain folder name"),
        ((*PREPARE, "data.answers=given"), "a grammar has no answers"),
        ((*PREPARE, "data.max_prompt_tokens=1"), "prompts are longer than 1 tokens"),
        ((*TRAIN, "answers=nowhere"), "no answers named 'nowhere'"),
        ((*TRAIN, "drafter.init=nowhere"), "no drafters named 'nowhere'"),
        ((*TRAIN, "eval.num_prompts=0"), "eval.num_prompts must be >= 1"),
        (("generate", "drafter=nowhere", "prompt=x"), "no drafters named 'nowhere'"),
        (("generate", "prompt= "), "generate needs a prompt"),
        (("generate", "prompt=x", "bundle=./b", "drafter=sql", "pool.scheduler=planner"), "leave one of them out"),
        (("generate", "drafter=", f"prompt={'x' * 3000}"), "this target reads 1 to 2047"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(bench, arguments, expected):
    done = bench(*arguments)
    assert expected in done.one_line()
    assert done.out == "" and bench.finished() in ([], ["tiny/answers/sql"])
    if arguments[0] != "train-drafter":
        lines = [line for line in done.err.splitlines() if " prompts: " not in line and not line.startswith("loading ")]
        assert len(lines) == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_refused_before_anything_is_written(bench, monkeypatch, name):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    line = bench(*TRAIN, f"trainer.loggers=[csv,{name}]").one_line()
    assert line.endswith(f'which is not installed; type pip install "drafterforge[{name}]"') and bench.finished() == []


# The target.


def damage_target(bench, name: str, content: bytes | None):
    folder = shutil.copytree(bench.target, bench.folder / "damaged")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    return folder


def test_a_missing_target_folder(bench):
    done = bench(*PREPARE, target=bench.folder / "nowhere")
    assert "is not a folder" in done.one_line() and done.err.count("\n") == 1 and bench.finished() == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b"{", "config.json is damaged (not JSON"),
        ("config.json", b'{"model_type": "abacus"}', "has model_type 'abacus', which transformers does not know"),
        ("model.safetensors", None, "has no *.safetensors"),
        ("model.safetensors", b"", "cannot be loaded"),
        ("model.safetensors", b"x" * 999, "cannot be loaded"),
        ("tokenizer.json", None, "cannot be loaded"),
        ("tokenizer.json", b"{}", "cannot be loaded"),
    ],
)
def test_a_corrupt_target_file(bench, name, content, expected):
    folder = damage_target(bench, name, content)
    done = bench(*PREPARE, target=folder)
    assert expected in done.one_line() and str(folder) in done.one_line()
    assert done.err.count("\n") == 1 and bench.finished() == []


def test_a_truncated_weight_file(bench):
    full = (bench.target / "model.safetensors").read_bytes()
    done = bench(*PREPARE, target=damage_target(bench, "model.safetensors", full[: len(full) // 2]))
    assert "cannot be loaded" in done.one_line() and done.err.count("\n") == 1 and bench.finished() == []


def test_a_weight_file_that_lacks_a_tensor(bench):
    from safetensors.torch import load_file

    folder = damage_target(bench, "model.safetensors", b"")
    tensors = load_file(bench.target / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    done = bench(*PREPARE, target=folder)
    assert "lacks model.layers.2.mlp.up_proj.weight" in done.one_line() and done.err.count("\n") == 1


@pytest.mark.slow
def test_a_drafter_for_another_target_names_both_fingerprints(trained, other_folder):
    fingerprints = fingerprint(trained.target), fingerprint(other_folder)
    commands = [("generate", "drafter=sql", "prompt=x"), (*TRAIN, "name=new", "drafter.init=sql"), TRAIN]
    before = trained.finished()
    for command in commands:
        line = trained(*command, target=other_folder).one_line()
        assert all(digest in line for digest in fingerprints)
    assert trained.finished() == before  # refused before any prompt is answered


@pytest.mark.slow
def test_a_damaged_drafter(trained):
    path = trained.artifact("drafters") / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    line = trained("generate", "drafter=sql", "prompt=x").one_line()
    assert "is damaged" in line and "type `drafterforge train-drafter domain=sql overwrite=true" in line
    assert "is damaged" in trained(*TRAIN).one_line()


# Data.


@pytest.mark.parametrize(
    ("lines", "number", "expected"),
    [
        (["{ok}", "{ok}", "not json"], 3, "found no JSON"),
        (["{ok}", '{"text": "hello"}'], 2, "no messages"),
        (["", "{ok}", '{"messages": "hello"}'], 3, "wanted a list"),
        (['["a"]'], 1, "wanted an object"),
        (['{"messages": [{"role": "robot", "content": "x"}]}'], 1, "the role 'robot'"),
    ],
)
def test_a_bad_jsonl_line_is_named_by_file_and_number(bench, lines, number, expected):
    path = bench.folder / "mine.jsonl"
    ok = json.dumps({"messages": [{"role": "user", "content": "question"}]})
    path.write_text("\n".join(line.replace("{ok}", ok) for line in lines))
    done = bench(*PREPARE, "data=jsonl", f"path={path}")
    assert f"{path}, line {number}: " in done.one_line() and expected in done.one_line()
    assert done.err.count("\n") == 1 and bench.finished() == []


@pytest.mark.parametrize("content", ["", "\n\n \n"])
@pytest.mark.parametrize("command", [PREPARE, TRAIN])
def test_an_empty_data_set(bench, content, command):
    path = bench.folder / "empty.jsonl"
    path.write_text(content)
    done = bench(*command, "data=jsonl", f"path={path}")
    assert f"{path} has no prompts" in done.one_line() and bench.finished() == []


def test_a_missing_data_file(bench):
    done = bench(*PREPARE, "data=jsonl", "path=nowhere.jsonl")
    assert "path=nowhere.jsonl: there is no such file or folder" in done.one_line() and done.err.count("\n") == 1


# A full disk, in every place that writes.

FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_IN_RUST = SafetensorError('Error while serializing: IoError(Os { code: 28, message: "No space left on device" })')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "call", "error"),
    [
        (os, "fsync", 14, FULL),
        (os, "link", 3, FULL),
        (features, "save_file", 1, FULL_IN_RUST),
        (resume, "save_file", 3, FULL_IN_RUST),
        (checkpoint, "save_file", 1, FULL_IN_RUST),
        (os, "mkdir", 1, FULL),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:20],
)
def test_a_full_disk_is_one_line_and_the_next_run_finishes(
    bench, trained_runs, monkeypatch, interrupt_again, module, name, call, error
):
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupt_again(getattr(module, name), call, error))
        done = bench(*BRIEF)
        if (module, name) == (os, "link"):  # copied instead
            assert done.code == 0
            return
    assert "the disk is full" in done.one_line()
    assert "tiny/drafters/sql" not in bench.finished() and "tiny/reports/sql" not in bench.finished()
    assert not [path for path in bench.runs.rglob("*.tmp-*") if path.is_dir()]
    assert bench(*BRIEF).code == 0
    equal_drafters(bench, trained_runs)


def equal_drafters(bench, trained_runs) -> None:
    """The drafter equals that of an uninterrupted run."""
    name = "tiny/drafters/sql/{}"
    for file in ("model.safetensors", "config.json", "curves.json", "logs/csv/metrics.csv"):
        assert (bench.runs / name.format(file)).read_bytes() == (trained_runs / name.format(file)).read_bytes(), file
    assert not list(bench.runs.rglob(".*.partial"))


# Ctrl-C and kills.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "full"),
    [
        (BatchAnswerer, "_step", 20, []),
        (features, "save_file", 2, ["tiny/answers/sql"]),
        (DistillModule, "training_step", 4, ["tiny/answers/sql", "tiny/features/sql"]),
        (checkpoint, "save_file", 1, ["tiny/answers/sql", "tiny/features/sql"]),
    ],
)
def test_ctrl_c_is_one_line_and_the_next_run_gives_the_same_drafter(
    bench, trained_runs, monkeypatch, interrupt_again, owner, name, call, full
):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt_again(getattr(owner, name), call))
        done = bench(*BRIEF)
    assert "interrupted; finished work is kept" in done.one_line(130)
    assert bench.finished() == full
    assert bench(*BRIEF).code == 0
    equal_drafters(bench, trained_runs)


CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130, signal.SIGTERM: 143}
# a shell starts background jobs with SIGINT ignored, and children inherit that
LISTEN = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
PIPES = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True, "preexec_fn": LISTEN}


def program(bench, *arguments: str) -> list[str]:
    """The command line of a training in another process."""
    hf = ["target=hf", f"target.model={bench.target}", "target.name=tiny", PLAIN, f"runs_dir={bench.runs}"]
    return [sys.executable, "-m", "drafterforge", *TRAIN, *hf, *arguments]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "signal_number"),
    [
        ("answers:", signal.SIGTERM),
        ("step 2/4", signal.SIGKILL),
        ("step 2/4", signal.SIGINT),
        ("drafter:", signal.SIGKILL),
    ],
)
def test_a_process_killed_at_a_moment_and_started_again_gives_the_same_drafter(
    bench, trained_runs, moment, signal_number
):
    with Program(program(bench), **PIPES) as process:
        for line in process.stderr:
            if moment in line:
                process.send_signal(signal_number)
                break
        rest = process.stderr.read()
    assert process.returncode == CODES[signal_number], rest
    if signal_number != signal.SIGKILL:
        assert re.match("drafterforge: (interrupted|terminated); finished work is kept", rest.splitlines()[-1])
    assert bench(*BRIEF).code == 0
    equal_drafters(bench, trained_runs)


@pytest.mark.slow
def test_a_training_that_a_signal_ends_between_validations_resumes(bench):
    long = ("trainer.max_steps=40", "trainer.val_every=40", "answers=sql", "eval.num_prompts=1")
    assert bench("prepare-data", "domain=sql", "experiment=smoke").code == 0
    assert bench(*TRAIN, *long, "name=whole").code == 0
    steps = bench.artifact("drafters", ".ended.partial") / "logs/csv/metrics.csv"
    with Program(program(bench, *long, "name=ended"), **PIPES) as process:
        deadline = time.monotonic() + 120
        while not (steps.is_file() and steps.read_text().count("\n") > 8) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        written = process.stderr.read()
    assert process.returncode == CODES[signal.SIGTERM], written
    step = int(re.search(r"training: saved at step (\d+)", written).group(1))
    assert 7 < step < 40
    done = bench(*TRAIN, *long, "name=ended")
    assert done.code == 0 and f"training: resumed at step {step} of 40" in done.err
    files = [bench.artifact("drafters", name) / "model.safetensors" for name in ("whole", "ended")]
    assert files[0].read_bytes() == files[1].read_bytes()
