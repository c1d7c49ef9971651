"""`generate`: every drafter gives the same text, with sampling, stop strings and colour."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from drafterforge.assembly.checks import check_bundle_settings
from drafterforge.config.serving import GenerateConfig
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine
from tests.tiny import save_tiny_target

pytestmark = pytest.mark.slow  # whole programs

ASK = ("generate", "prompt=Which users are active?", "max_new_tokens=30")
SAMPLE = ("temperature=1.0", "top_p=0.9", "repetition_penalty=1.2", "seed=7")
GREEN, RESET = "\x1b[32m", "\x1b[0m"


@pytest.fixture
def small_folder(tmp_path):
    """A smaller language model with the same tokenizer."""
    return save_tiny_target(tmp_path / "small", num_hidden_layers=5, hidden_size=16, intermediate_size=24)


@pytest.mark.parametrize("sampling", [(), SAMPLE])
def test_every_kind_of_drafter_prints_the_same_text(trained, small_folder, sampling):
    expected = trained(*ASK, *sampling, "drafter=").out
    for drafter in ("auto", "sql", "retrieval", "sql+retrieval", str(small_folder)):
        done = trained(*ASK, *sampling, f"drafter={drafter}")
        assert done.code == 0 and done.out == expected
    assert trained(*ASK, *SAMPLE[:-1], "seed=8").out != expected


def test_the_summary_says_how_many_cycles_each_drafter_of_a_pool_drafted(trained):
    done = trained(*ASK, "drafter=pool", "pool.drafters=[sql,retrieval]")
    counts = re.search(r"(\d+) cycles \((.+?)\),", done.err)
    turns = dict(part.rsplit(" ", 1) for part in counts[2].split(", "))
    assert set(turns) <= {"sql", "retrieval"} and 0 < sum(map(int, turns.values())) <= int(counts[1])


def test_numerics_and_the_shape_of_the_drafter_s_kind_reach_the_engine(trained, monkeypatch):
    seen = []

    class Watched(Engine):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            seen.append((self.numerics, self.shape))

    monkeypatch.setattr("drafterforge.assembly.build.Engine", Watched)
    trained(*ASK, "target.dtype=bfloat16")
    trained(*ASK, "target.dtype=bfloat16", "runtime.numerics=fast", "drafter=retrieval")
    assert [numerics for numerics, _ in seen] == ["invariant", "fast"]
    assert seen[1][1].depth == 10


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # in the locales en_US.UTF-8 and C.UTF-8
def test_bytes_on_standard_input_that_are_no_text_are_refused(trained, monkeypatch, errors):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ask \xff"), "utf-8", errors))
    assert "is not UTF-8; convert it" in trained("generate").one_line()


def test_line_ends_of_windows_give_the_same_answer(trained, monkeypatch):
    answers = []
    for end in (b"\n", b"\r\n"):
        text = io.BytesIO(end.join([b"ask", b"again", b""]))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(text, "utf-8", newline=""))
        answers.append(trained("generate", "max_new_tokens=8", "drafter=").out)
    assert answers[0] == answers[1] != ""


def test_what_was_learned_may_be_lost_without_an_error(trained, monkeypatch):
    monkeypatch.setattr(Engine, "save_state", lambda _: Path("/proc/version/x").mkdir())
    done = trained(*ASK)
    assert done.code == 0 and "warning: what was learned about the drafters is lost" in done.err


def test_a_bundle_decodes_plainly_without_a_drafter(trained):
    assert trained("export", "bundle=house", "pool.drafters=[sql]").code == 0
    done = trained(*ASK, "bundle=house", "drafter=")
    assert done.code == 0 and "1.00 tokens a cycle" in done.err
    assert "drafter= of a bundle" in trained(*ASK, "bundle=house", "drafter=", "pool.scheduler=x").one_line()
    with pytest.raises(ConfigError, match=r"leave out target\.forward="):
        check_bundle_settings(GenerateConfig(bundle="house", target=TargetConfig(forward="modules")))


def test_a_stop_string_ends_the_text_and_is_left_out(trained):
    full = trained(*ASK, "drafter=").out
    stop = next(text for text in re.findall(r"[^\W_]{1,3}|[!-/]", full[3:]) if "\ufffd" not in text)
    for drafter in (("drafter=",), ("drafter=sql",)):
        done = trained(*ASK, f"stop=['{stop}']", *drafter)
        assert done.out == full[: full.index(stop)] + "\n" and "stopped at stop" in done.err


def test_a_stop_string_may_name_a_new_line(trained, monkeypatch):
    seen = []
    real = Engine.stream

    def stream(self, prompt, max_new_tokens, sampling, stop):
        seen.append(stop)
        return real(self, prompt, max_new_tokens, sampling, stop)

    monkeypatch.setattr(Engine, "stream", stream)
    assert trained(*ASK, r"stop=['\n\n','a\tb']").code == 0
    assert seen == [["\n\n", "a\tb"]]


def test_drafted_tokens_are_green_and_the_text_stays_the_same(trained, small_folder):
    plain = trained(*ASK, "drafter=retrieval", "colour=never").out
    assert "\x1b" not in plain
    coloured = trained(
        *ASK, f"drafter={trained.target}", "colour=always"
    ).out  # the target as its own drafter: every draft is accepted
    assert GREEN in coloured and re.sub(r"\x1b\[\d+m", "", coloured) == plain
    drafted = "".join(re.findall(re.escape(GREEN) + "(.*?)" + re.escape(RESET), coloured, re.DOTALL))
    assert len(drafted) > len(plain) / 3


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("temperature=-1", "temperature must be >= 0"),
        ("top_p=0", "top_p must be in (0, 1]"),
        ("colour=blue", "colour must be one of auto, always, never"),
        ("runtime.numerics=exact", "runtime.numerics must be one of auto, fast, invariant"),
        ("drafter=nowhere", "nowhere"),
        ("stop=['']", "a stop string must not be empty"),
    ],
)
def test_a_mistake_is_one_line(trained, typed, expected):
    assert expected in trained(*ASK, typed).one_line()


def test_a_small_model_with_other_token_ids_is_refused(trained, tmp_path):
    folder = save_tiny_target(tmp_path / "other", vocab_size=300)
    assert "causal LM drafts for a target with the same tokenizer" in trained(*ASK, f"drafter={folder}").one_line()
