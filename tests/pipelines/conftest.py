"""Commands run in this process, on a tiny target on disk."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from drafterforge.artifacts.staging import drop_staging
from drafterforge.cli import main
from drafterforge.drafters.eagle3.train.loss import StepCounts
from drafterforge.evaluation import load_warning
from drafterforge.prompts.domains import domains
from drafterforge.reporting import charts
from drafterforge.training import policy_artifact
from tests.tiny import save_tiny_target

SMOKE = ("experiment=smoke", "eval.num_prompts=1", "eval.max_new_tokens=4", "eval.chain=false")
LEFT_OUT = [  # a smoke run has prompts of four domains
    f"domain.weights.{name}=0" for name in domains() if name not in ("sql", "python", "math", "chat")
]
GENERAL = ("train-drafter", "domain=general", "data.num_val=32", *LEFT_OUT, *SMOKE)  # 8 of each domain: a full pool
EXPERT = ("train-drafter", "answers=general", "drafter=lora", "drafter.lora.rank=4", *SMOKE)
CONTINUED = ("train-drafter", "domain=sql", "answers=general", "drafter=lora", "drafter.init=sql", *SMOKE)
PLAIN = "target.dtype=float32"  # so that CPUs with and without bfloat16 give the same tokens and rows
TRAIN = ("train-drafter", "domain=sql", "experiment=smoke")


@contextmanager
def rising_lengths(by: int = 1) -> Iterator[None]:
    """Each accept length that training measures is `by` more than the previous one."""
    lengths = itertools.count(100, by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCounts, "accept_length", lambda counts: torch.tensor(float(next(lengths))))
        yield


@dataclass
class Done:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    def one_line(self, code: int = 2) -> str:
        """The one line that names the user's mistake; no other line may look like an error."""
        lines = self.err.splitlines()
        ours = [line for line in lines if line.startswith("drafterforge: ")]
        assert self.code == code and len(ours) == 1 and ours[0] == lines[-1], self.err
        assert "Traceback" not in self.err and "\r" not in self.err
        return ours[0]


@dataclass
class Bench:
    """A folder of runs and the command line."""

    folder: Path
    target: Path
    capsys: pytest.CaptureFixture

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def __call__(self, command: str, *arguments: str, target: Path | None = None) -> Done:
        """Run a command on the tiny target."""
        self.capsys.readouterr()
        hf = ["target=hf", f"target.model={target or self.target}", "target.name=tiny"]
        if not any(argument.startswith("target.dtype=") for argument in arguments):
            hf.append(PLAIN)
        code = main([command, *hf, f"runs_dir={self.runs}", *arguments])
        return Done(code, *self.capsys.readouterr())

    def artifact(self, kind: str, name: str = "sql") -> Path:
        return self.runs / "tiny" / kind / name

    def finished(self) -> list[str]:
        """Folders that a command would accept as complete artifacts."""
        return sorted(str(path.parent.relative_to(self.runs)) for path in self.runs.glob("*/*/[!.]*/manifest.json"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A tiny Llama and its tokenizer."""
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory) -> Path:
    """A target with the same shapes and other weights."""
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny", initializer_range=0.1)


@pytest.fixture
def bench(tmp_path, tiny_folder, capsys) -> Bench:
    """A bench without runs."""
    yield (bench := Bench(tmp_path, tiny_folder, capsys))
    for staging in bench.runs.glob("*/*/.*.partial"):
        drop_staging(staging.with_name(staging.name.removeprefix(".").removesuffix(".partial")))


@contextmanager
def empty_charts() -> Iterator[None]:
    """The charts of reports are empty: drawing takes seconds, and tests of reports draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "draw", lambda key, height, paint: '<svg viewBox="0 0 1 1"></svg>')
        yield


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """Fixtures of the session are older than this one, and use `empty_charts` themselves."""
    with empty_charts():
        yield


@pytest.fixture(autouse=True)
def no_learning_curves(monkeypatch) -> None:
    """The learning curves of policies are not drawn either; those of `policy_runs` are."""
    monkeypatch.setattr(policy_artifact, "plot_curves", lambda path, curves, method: None)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch) -> None:
    """Nobody samples the machine's load, which takes 0.2 seconds."""
    monkeypatch.setattr(load_warning, "current_warning", lambda: None)


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory, tiny_folder) -> Path:
    """Runs of one finished `train-drafter`."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN)
    with empty_charts():
        assert main([*TRAIN, *hf, f"runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def trained(bench, trained_runs) -> Bench:
    """A bench with a copy of that drafter, its answers, features and report."""
    shutil.copytree(trained_runs, bench.runs)
    return bench


@pytest.fixture
def interrupt_again() -> Callable[[int], Callable]:
    """Wraps a function so that its n-th call raises KeyboardInterrupt; afterwards SIGINT is handled as before."""
    handler = signal.getsignal(signal.SIGINT)

    def wrap(real: Callable, call: int, error: BaseException | type[BaseException] = KeyboardInterrupt) -> Callable:
        calls = [0]

        def wrapped(*args, **kwargs):
            calls[0] += 1
            if calls[0] == call:
                raise error
            return real(*args, **kwargs)

        return wrapped

    yield wrap
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def pool_runs(tmp_path_factory, tiny_folder) -> Path:
    """Runs of a generalist and two experts."""
    runs = tmp_path_factory.mktemp("pool") / "runs"
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={runs}")
    with empty_charts():
        assert main([*GENERAL, *hf]) == 0
        with rising_lengths():
            assert all(main([*EXPERT, *hf, f"domain={domain}"]) == 0 for domain in ("sql", "math"))
    return runs


@pytest.fixture
def pool(bench, pool_runs) -> Bench:
    """A bench with a copy of that pool."""
    shutil.copytree(pool_runs, bench.runs)
    return bench
