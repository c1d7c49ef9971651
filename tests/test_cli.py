"""What a user meets: help without torch, and one line with exit code 2 for every mistake."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
import types
from importlib import import_module
from importlib.util import find_spec

import pytest

from drafterforge import __version__
from drafterforge.artifacts.locate import SHIPPED
from drafterforge.cli import COMMANDS, main
from drafterforge.cli.failures import message_line
from drafterforge.config import commands, serving
from drafterforge.errors import ArtifactError


@pytest.fixture
def pipeline(monkeypatch):
    """Stands in for every pipeline: keeps its config, and raises the error it is given."""
    fake = types.ModuleType("fake_pipeline")
    fake.config, fake.error, fake.act = None, None, lambda: None

    def run(config):
        fake.config = config
        fake.act()
        if fake.error is not None:
            raise fake.error

    fake.run = run
    for command in COMMANDS.values():
        monkeypatch.setitem(sys.modules, command.module, fake)
    return fake


def _one_line(capsys, *arguments: str, code: int = 2) -> str:
    """Run a command that has to fail; return its single line on stderr."""
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    line = re.sub(r"\Aloading .*\n", "", captured.err)  # by `generate`
    assert line.startswith("drafterforge: ") and line.count("\n") == 1
    return line.strip()


def _chained(error: BaseException, *causes: BaseException, explicit: bool = True) -> BaseException:
    for outer, inner in zip((error, *causes), causes, strict=False):
        outer.__cause__ = inner if explicit else None
        outer.__context__ = inner
    return error


# Help.


@pytest.mark.parametrize("arguments", [["--help"], ["train-drafter", "--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from drafterforge.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'hydra', 'omegaconf', 'lightning', 'datasets', 'numpy'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "drafterforge" in done.stdout


def test_a_mistake_is_reported_before_torch_is_imported():
    code = (
        "import sys; from drafterforge.cli import main;"
        "code = main(['train-drafter', 'domian=sql']);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(f"{name} " in help_text and row.summary in help_text for name, row in COMMANDS.items())


@pytest.mark.parametrize("flag", ["-h", "--help", "help"])
def test_command_help_shows_choices_defaults_and_meanings(flag, capsys):
    assert main(["train-drafter", flag]) == 0
    help_text = capsys.readouterr().out
    assert "chat | general | math | medical" in help_text
    assert "| any name with data=jsonl or data=hf\n" in help_text and "\n  domain.name=  " in help_text
    assert "auto: a LoRA on a trained generalist if one fits the target, else warm" in help_text
    assert "trainer.ttt_steps=7" in help_text and "draft positions unrolled during training" in help_text


def test_help_shows_the_keys_of_every_method_or_of_the_one_that_is_typed(capsys):
    assert main(["train-policy", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "Further keys of policy=ltd:\n" in help_text and "policy.size_actor=[1024,256]" in help_text
    assert main(["train-policy", "policy=ltd", "--help"]) == 0
    typed = capsys.readouterr().out
    assert "Further keys" not in typed and "policy.size_actor=[1024,256]" in typed and "policy.arms" not in typed


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"drafterforge {__version__}\n"


def test_module_and_console_script_are_the_same_command():
    done = subprocess.run([sys.executable, "-m", "drafterforge", "nonsense"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("drafterforge: no command 'nonsense' (have: prepare-data")


# The table.


@pytest.mark.parametrize("command", COMMANDS)
def test_table_names_the_pipeline_and_its_config(command):
    row = COMMANDS[command]
    assert row.name == command.replace("-", "_")
    assert find_spec(row.module) is not None
    module = import_module(row.module)
    assert module.Config is row.config and callable(module.run)


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["prepare-data", "domain=sql"], commands.PrepareDataConfig),
        (["train-drafter", "domain=sql"], commands.TrainDrafterConfig),
        (["generate", "prompt=hello"], serving.GenerateConfig),
        (["quickstart"], commands.QuickstartConfig),
        (["doctor"], commands.DoctorConfig),
        (["inspect", "runs/x"], commands.InspectConfig),
    ],
)
def test_command_runs_its_pipeline_with_its_config(pipeline, arguments, config):
    assert main(arguments) == 0
    assert type(pipeline.config) is config


@pytest.mark.parametrize("path", ["runs/x", "path=runs/x"])
def test_inspect_takes_its_path_bare(pipeline, path):
    assert main(["inspect", path]) == 0
    assert pipeline.config.path == "runs/x"


@pytest.mark.parametrize(
    "prompt",
    [
        "How many users?",
        "a=b, c={d} [e",
        "'quoted'",
        '"',
        "${oc.env:HOME}",
        "null",
        "???",
        "",
        "x\ny",
    ],
)
def test_prompt_is_taken_verbatim(pipeline, prompt):
    assert main(["generate", f"prompt={prompt}"]) == 0
    assert pipeline.config.prompt == prompt


# Mistakes in what was typed.

TRAIN = ["train-drafter", "domain=sql"]
MISTAKES = {
    "unknown command": (
        ["train-drafer"],
        "no command 'train-drafer'; did you mean 'train-drafter'?",
    ),
    "compare": (["compare", "a", "b"], "type `drafterforge eval compare=A,B`"),
    "unknown choice": (["train-drafter", "domain=sqll"], "no domain named 'sqll'; did you mean"),
    "unknown group": (["train-drafter", "domian=sql"], "'domian'; did you mean domain?"),
    "group of another command": (["generate", "domain=sql"], "no config key 'domain'"),
    "no choice": (["train-drafter"], "needs a domain: type domain=sql (have: chat, general,"),
    "no choice, experiment": (["train-drafter", "experiment=smoke"], "needs a domain"),
    "unknown key": ([*TRAIN, "trainer.max_step=1"], "did you mean trainer.max_steps?"),
    "key like none": ([*TRAIN, "eval.zebra=1"], "no config key 'eval.zebra'; eval has: chain, check_float32"),
    "key of another section": (["generate", "runtime.max_new_tokens=3"], "; did you mean max_new_tokens?"),
    "key of a group": ([*TRAIN, "max_steps=1"], "did you mean trainer.max_steps?"),
    "nothing like it": ([*TRAIN, "zzz=1"], "'zzz'; `drafterforge train-drafter --help` lists them"),
    "below a key": ([*TRAIN, "trainer.lr.x=1"], "no config key 'trainer.lr.x'"),
    "value type": ([*TRAIN, "trainer.max_steps=ten"], "must be a whole number, got 'ten'"),
    "fraction": ([*TRAIN, "trainer.max_steps=1.5"], "must be a whole number, got '1.5'"),
    "bool for a number": ([*TRAIN, "trainer.lr=true"], "trainer.lr must be a number, got 'true'"),
    "number for a list": ([*TRAIN, "trainer.betas=0.9"], "must be a list such as [a,b]"),
    "not null": ([*TRAIN, "seed=null"], "seed must be a whole number, got 'null'"),
    "null text": ([*TRAIN, "name=null"], "name cannot be null"),
    "empty value": ([*TRAIN, "trainer.lr="], "trainer.lr must be a number, got ''"),
    "range": ([*TRAIN, "trainer.max_steps=0"], "trainer.max_steps must be >= 1, got 0"),
    "not one of": ([*TRAIN, "target.dtype=int8"], "target.dtype must be one of"),
    "almost one of": (["learn", "sttus"], "got 'sttus'; did you mean status?"),
    "removed key": (["eval", "pool.every=3"], "pool.every is gone: all drafters read in every cycle if the selector"),
    "removed key under its last name": (
        ["generate", "prompt=x", "pool.read_interval=1"],
        "pool.read_interval is gone: all drafters read in every cycle if the selector evaluates them, else a drafter "
        "reads only when it drafts; leave it out",
    ),
    "renamed key": (
        ["train-policy", "policy=resps", "policy.train_every=10"],
        "policy.train_every is now policy.train_hold_cycles; type policy.train_hold_cycles=10",
    ),
    "renamed choice": ([*TRAIN, "data=served", "path=x"], "data=served is now data=recorded; type data=recorded"),
    "key of another method": (
        ["train-policy", "policy.decides=depth"],
        "policy=marginal has no key policy.decides; policy=ltd has",
    ),
    "key of other methods": (
        ["train-policy", "policy=joint", "policy.max_depth=3"],
        "policy=joint has no key policy.max_depth; policy=ltd, policy=marginal have",
    ),
    "method without its group": (
        ["train-policy", "policy.method=ltd"],
        "policy.method is set by policy=; type policy=ltd",
    ),
    "router for a scheduler": (
        ["train-policy", "router.hidden=1"],
        "read by policy=router only, not by policy=marginal",
    ),
    "drafter for a router": (
        ["train-policy", "policy=router", "drafter=sql"],
        "drafter=sql is not read by policy=router",
    ),
    "singular key of a section": (
        ["train-policy", "traces.drafter=sql"],
        "'traces.drafter'; did you mean traces.drafters?",
    ),
    "own domain with an unknown source": (
        ["train-drafter", "domain=kubernetes", "data=json", "path=x.json"],
        "no data named 'json'; did you mean data=jsonl?",
    ),
    "bare prompt": (
        ["generate", "Which query?"],
        "'Which query?' is not key=value; did you mean prompt=\"Which query?\"?",
    ),
    "bare word": (["generate", "hello"], 'did you mean prompt="hello"?'),
    "own domain without prompts": (
        ["train-drafter", "domain=kubernetes"],
        "no domain named 'kubernetes' (have: chat, general, math, medical, python, science, sql, summarization, "
        "translation); for a domain of your own, also type data=jsonl path=FILE.jsonl or data=hf",
    ),
    "own domain with an odd name": (
        ["train-drafter", "domain=my/domain", "data=jsonl", "path=x.jsonl"],
        "a domain's name may contain letters, digits, - and _ only, got domain=my/domain",
    ),
    "missing value": ([*TRAIN, "seed=???"], "seed needs a value"),
    "missing file": ([*TRAIN, "data=jsonl"], "data=jsonl needs a file: type path=FILE.jsonl"),
    "file without jsonl": ([*TRAIN, "path=x.jsonl"], "if it holds prompts, add data=jsonl"),
    "syntax": ([*TRAIN, "trainer.betas=[0.9"], "trainer.betas=[0.9 cannot be read"),
    "syntax of a text": (["generate", "prompt=x", "stop=###"], """typed in quotes of both kinds: "stop=['###']\""""),
    "sweep": ([*TRAIN, "trainer.lr=1,2"], "trainer.lr takes one value"),
    "interpolation": ([*TRAIN, "trainer.lr=${nothing}"], "trainer.lr: Interpolation key"),
    "added key": ([*TRAIN, "+trainer.foo=1"], "no config key '+trainer.foo'"),
    "added known key": ([*TRAIN, "+trainer.lr=1"], "'+trainer.lr'; type trainer.lr=1"),
    "flag": ([*TRAIN, "--trainer.lr=1"], "'--trainer.lr'; type trainer.lr=1"),
    "deleted key": ([*TRAIN, "~trainer.lr"], "'~trainer.lr' is not key=value"),
    "no equals sign": (["train-drafter", "sql"], "is not key=value; did you mean domain=sql?"),
    "path of a long name": (["generate", "prompt=x", f"bundle={'x' * 300}/y"], "File name too long: "),
    "long name": (["generate", "prompt=x", f"bundle={'x' * 300}"], "must be a plain folder name (no '/', no leading"),
    "home of nobody": (["generate", "prompt=x", "bundle=~no-such-user/y"], "a path begins with ~ and no user of this"),
    "bytes that are no text": ([*TRAIN, "name=\udcff"], "is not UTF-8; type it in UTF-8"),
    "huge top_k": (["generate", "prompt=x", "top_k=9223372036854775807"], "top_k must be in [0, 2**31)"),
    "drafter as answers": (
        ["train-drafter", "domain=mine", f"answers={SHIPPED}/smollm2-135m/drafters/general"],
        "holds drafters 'general', expected answers; type `drafterforge prepare-data",
    ),
    "inspect nothing": (["inspect"], "type `drafterforge inspect NAME_OR_PATH`"),
    "inspect two": (["inspect", "a", "b"], "inspect takes one folder, got 2"),
}


@pytest.mark.parametrize(
    "override", ["{}", "{}=1", "trainer.lr={}", "trainer.betas=[{}", "target={}", "trainer.lr=1,{}", "+trainer.lr={}"]
)
def test_an_error_repeats_a_part_of_what_was_typed(capsys, override):
    assert main([*TRAIN, override.format("x" * 100_000)]) == 2
    assert len(capsys.readouterr().err) < 500


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_runs_nothing(mistake, pipeline, capsys):
    arguments, message = MISTAKES[mistake]
    assert message in _one_line(capsys, *arguments)
    assert pipeline.config is None


# What happens while a pipeline runs.


def test_an_error_of_ours_is_one_line_even_where_its_text_has_several(pipeline, capsys):
    pipeline.error = ArtifactError("manifest.json is damaged:\n  expected '}'")
    assert _one_line(capsys, *TRAIN) == "drafterforge: manifest.json is damaged: expected '}'"


def test_an_error_of_ours_is_found_behind_the_one_a_library_raised_from_it(pipeline, capsys):
    pipeline.error = _chained(RuntimeError("while reading"), ArtifactError("line 3 is no JSON"))
    assert _one_line(capsys, *TRAIN) == "drafterforge: line 3 is no JSON"


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        _chained(SystemExit(1), KeyboardInterrupt(), explicit=False),  # as lightning's trainer ends
        _chained(RuntimeError("worker died"), KeyboardInterrupt(), explicit=False),
    ],
)
def test_ctrl_c_is_one_line(error, pipeline, capsys):
    pipeline.error = error
    assert "interrupted; finished work is kept" in _one_line(capsys, *TRAIN, code=130)
    assert _one_line(capsys, "generate", "prompt=x", code=130) == "drafterforge: interrupted"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "serve"])  # which ends by itself
@pytest.mark.parametrize(
    ("number", "code", "verb"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "term")]
)
def test_a_signal_ends_every_command_with_the_exit_code_of_shells(command, number, code, verb, pipeline, capsys):
    words = {"generate": ["prompt=x"], "inspect": ["runs/x"], "export": ["bundle=b"], "import": ["path=x"]}
    words |= {name: ["domain=sql"] for name in ("train-drafter", "prepare-data")}
    words["plan"] = ["train-drafter", "domain=sql"]
    handler = signal.getsignal(signal.SIGTERM)
    pipeline.act = lambda: os.kill(os.getpid(), number)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in background
    try:
        assert _one_line(capsys, command, *words.get(command, []), code=code).startswith(f"drafterforge: {verb}")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_meets_a_finalizer_ends_the_command_too(number, code, pipeline, capsys):
    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0)

    def act() -> None:
        Finalized()
        time.sleep(20)

    pipeline.act = act
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _one_line(capsys, *TRAIN, code=code)
    finally:
        signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/shard.safetensors"), "a/shard"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "b.json"), "b.json"),
        (_chained(RuntimeError("x"), OSError(errno.ENOSPC, "No space", "c.arrow")), "c.arrow"),
        (
            _chained(RuntimeError("x"), OSError(errno.ENOSPC, "No space", "d"), explicit=False),
            "writing d;",
        ),
        (Exception('IoError(Os { code: 28, message: "No space left on device" })'), "elsewhere"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_path(error, path, pipeline, capsys):
    pipeline.error = error
    line = _one_line(capsys, *TRAIN, "runs_dir=elsewhere")
    assert "the disk is full while writing" in line and path in line


def test_a_gpu_without_memory_is_one_line_that_names_what_to_type(pipeline, capsys):
    torch = pytest.importorskip("torch")
    pipeline.error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation.")
    line = _one_line(capsys, *TRAIN, "runs_dir=elsewhere")
    assert "the GPU is out of memory" in line and "data.batch_size=" in line and "trainer.tokens_per_batch=" in line
    assert "`drafterforge plan train-drafter runs_dir=elsewhere` estimates what fits" in line
    assert message_line(pipeline.error, None, resumes=False).endswith("or type target.device=cpu")


def test_a_file_one_may_not_write_is_one_line(pipeline, capsys):
    pipeline.error = PermissionError(errno.EACCES, "Permission denied", "runs/x")
    assert _one_line(capsys, *TRAIN) == "drafterforge: Permission denied: runs/x"


def test_a_file_in_the_place_of_a_folder_is_one_line(pipeline, capsys):
    pipeline.error = NotADirectoryError(errno.ENOTDIR, "Not a directory", "cache/targets")
    assert _one_line(capsys, *TRAIN) == "drafterforge: Not a directory: cache/targets; type another path"


def test_a_current_folder_that_was_deleted_is_one_line(pipeline, capsys):
    pipeline.error = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert "the current folder does not exist any more" in _one_line(capsys, *TRAIN)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_error(closed):
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m drafterforge --help {closed}"], capture_output=True)
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_characters_that_the_terminal_lacks_are_question_marks():
    code = "import sys; from drafterforge.cli.run import main; main(['--version']); print('caf\u00e9')"
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
    assert done.stdout.endswith(b"caf?\n")


def test_help_may_come_before_the_command(capsys):
    assert main(["help", "serve"]) == 0
    before = capsys.readouterr().out
    assert main(["serve", "--help"]) == 0 and capsys.readouterr().out == before


def test_a_bug_keeps_its_traceback(pipeline):
    pipeline.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        main(TRAIN)
    pipeline.error = SystemExit(3)
    with pytest.raises(SystemExit):
        main(TRAIN)


def test_a_closed_pipe_is_quiet():
    help_text = f"{sys.executable} -m drafterforge train-drafter --help"
    command = f"{help_text} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 141)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "drafterforge", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "disk is full" in done.stderr
