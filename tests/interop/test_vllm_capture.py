"""What vLLM serves is recorded exactly, whatever its batches look like, and recording never disturbs serving."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from drafterforge.data import served
from drafterforge.data.features import CachedCapture
from drafterforge.data.served import ServedCaptures, served_rows
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.vllm import capture
from drafterforge.interop.vllm.capture import Recorder, RecordSettings

HIDDEN, VOCAB, STOP, JUNK = 8, 50, 1, 49


@dataclass
class Request:
    """A text that the engine decodes, and the target's outputs at each of its positions."""

    prompt: list[int]
    answer: list[int]
    max_tokens: int = 100

    def __post_init__(self) -> None:
        self.ids = self.prompt + self.answer
        noise = torch.randn(len(self.ids), 4 * HIDDEN)
        self.features, self.states = noise[:, : 3 * HIDDEN], noise[:, 3 * HIDDEN :]


def request(num_prompt: int = 5, num_answer: int = 7, stops: bool = True, **more: int) -> Request:
    ids = torch.randint(2, JUNK, (num_prompt + num_answer,)).tolist()
    return Request(ids[:num_prompt], [*ids[num_prompt:-1], STOP if stops else ids[-1]], **more)


@dataclass
class Rows:
    """Rows of a request in a cycle: committed ones from a position on, and rejected ones behind them."""

    name: str
    position: int
    committed: int
    rejected: int = 0


@dataclass
class Server:
    """An engine that verifies given texts."""

    folder: Path
    device: str = "cpu"
    limit_mb: int = 1024
    flush_s: float = 3600.0
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = RecordSettings(str(self.folder), self.limit_mb)
        self.recorder = Recorder(settings, torch.device(self.device), self.flush_s)

    def begin(self, **requests: Request) -> None:
        self.requests |= requests
        for name, entry in requests.items():
            self.recorder.begin(name, entry.prompt, entry.max_tokens, {STOP})

    def cycle(self, *batch: Rows) -> None:
        """A cycle of the batch; rejected rows hold junk, as does the next token inside a prompt."""
        tokens, positions, features, states, starts, ends, following = [], [], [], [], [], [], []
        for rows in batch:
            entry, end = self.requests[rows.name], rows.position + rows.committed
            starts.append(len(tokens))
            ends.append(len(tokens) + rows.committed - 1)
            tokens += entry.ids[rows.position : end] + [JUNK] * rows.rejected
            positions += range(rows.position, end + rows.rejected)
            for outputs, exact in ((features, entry.features), (states, entry.states)):
                outputs += [exact[rows.position : end], torch.full((rows.rejected, exact.shape[1]), 99.0)]
            following.append(entry.ids[end] if len(entry.prompt) <= end < len(entry.ids) else JUNK)
        lists = (starts, ends, tokens, following, positions)
        tensors = [torch.tensor(values, device=self.device) for values in lists]
        tensors += [torch.cat(outputs).to(self.device) for outputs in (features, states)]
        with torch.inference_mode():
            self.recorder.cycle([rows.name for rows in batch], *tensors)
        if self.device == "cpu":
            for tensor in tensors:
                tensor.zero_()  # vLLM reuses its buffers

    def serve(self, name: str, *counts: int) -> None:
        """Serve a request alone.  counts: committed rows of its cycles."""
        position = 0
        for committed in counts:
            self.cycle(Rows(name, position, committed, rejected=2))
            position += committed
        self.recorder.end([name])


@pytest.fixture
def server(tmp_path) -> Server:
    server = Server(tmp_path / "record")
    yield server
    server.recorder.close()


def recorded(server: Server) -> dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor] | None]:
    """Features and states of the recorded texts, without the last position; None where they were not captured."""
    server.recorder.close()
    outputs: dict = {}
    captures = ServedCaptures(server.folder, ExactOutputs(server))
    for shard in sorted(server.folder.glob("*.arrow")):
        for row in served.AnswerRows([shard]):
            assert row.loss_mask == [0] * row.prompt_tokens + [1] * row.answer_tokens
            cached = captures([row])[0]
            is_captured = row.id in captures.shards
            outputs[tuple(row.input_ids)] = (cached.features[:-1], cached.states[:-1]) if is_captured else None
    return outputs


@dataclass
class ExactOutputs:
    """The target, whose three layers are the tapped ones."""

    server: Server
    taps: tuple[int, ...] = (0, 1, 2)

    def __call__(self, sequences: list[list[int]]) -> list[CachedCapture]:
        return [self.capture(ids) for ids in sequences]

    def capture(self, ids: list[int]) -> CachedCapture:
        length = len(ids)
        entry = next(entry for entry in self.server.requests.values() if entry.ids[:length] == list(ids))
        return CachedCapture(entry.features[:length], entry.states[:length], torch.zeros(length, dtype=torch.long))

    def argmax(self, states: torch.Tensor) -> torch.Tensor:
        return states.float().argmax(dim=-1)

    def layer_inputs(self, ids: list[int]) -> torch.Tensor:
        return self.capture(ids).features.unflatten(1, (3, HIDDEN)).transpose(0, 1)


def assert_exact(outputs, entry: Request, length: int | None = None) -> None:
    """The outputs of an answer of this length are the request's, in bfloat16."""
    ids = entry.ids[: len(entry.prompt) + length] if length else entry.ids
    features, states = outputs[tuple(ids)]
    assert torch.equal(features, entry.features[: len(ids) - 1].bfloat16())
    assert torch.equal(states, entry.states[: len(ids) - 1].bfloat16())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_ragged_batches_give_exact_texts_and_outputs(tmp_path, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    server = Server(tmp_path, device)
    server.begin(a=request(5, 7), b=request(3, 9), c=request(9, 4))
    server.cycle(Rows("a", 0, 5), Rows("c", 0, 4))  # c's prompt is read in chunks
    server.cycle(Rows("a", 5, 3, rejected=1), Rows("c", 4, 5), Rows("b", 0, 3))
    server.cycle(Rows("b", 3, 4), Rows("a", 8, 1, rejected=3), Rows("c", 9, 2, rejected=2))
    server.cycle(Rows("c", 11, 1, rejected=3), Rows("a", 9, 2, rejected=2), Rows("b", 7, 4))
    server.recorder.end(["a", "c", "b", "unknown"])
    outputs = recorded(server)
    assert len(outputs) == 3
    for entry in server.requests.values():
        assert_exact(outputs, entry)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cycle_never_waits_for_the_device(tmp_path):
    recorder = Recorder(RecordSettings(str(tmp_path)), torch.device("cuda"))
    recorder.begin("a", [5, 6], 9, {STOP})
    indices = [torch.tensor([0], device="cuda"), torch.tensor([1], device="cuda")]
    rows, outputs = torch.tensor([5, 6], device="cuda"), torch.ones(2, HIDDEN, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        recorder.cycle(["a"], *indices, rows, indices[0], rows - 5, outputs, outputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        recorder.close()


@pytest.mark.parametrize("resume", [[12], [3, 9], [7, 2, 3], [5, 7]], ids=str)
def test_positions_read_again_after_a_preemption_are_recorded_once(server, resume):
    server.begin(a=request(5, 8))
    server.cycle(Rows("a", 0, 5))
    server.cycle(Rows("a", 5, 3, rejected=1))
    server.serve("a", *resume)  # from position 0 on
    assert_exact(recorded(server), server.requests["a"])


def test_a_request_resumed_from_the_prefix_cache_keeps_its_first_rows(server):
    server.begin(a=request(6, 6))
    server.cycle(Rows("a", 0, 6))
    server.cycle(Rows("a", 6, 3))
    server.cycle(Rows("a", 4, 5))
    server.cycle(Rows("a", 9, 2))
    server.recorder.end(["a"])
    assert_exact(recorded(server), server.requests["a"])


def test_a_prompt_from_the_prefix_cache_is_recorded_as_text_alone(server):
    server.begin(a=request(8, 5))
    server.cycle(Rows("a", 4, 4))
    server.cycle(Rows("a", 8, 4))
    server.recorder.end(["a"])
    assert recorded(server) == {tuple(server.requests["a"].ids): None}


def test_an_answer_ends_at_its_end_token_or_limit(server):
    stopping, limited = request(4, 9), request(4, 9, stops=False, max_tokens=6)
    stopping.answer[3] = stopping.ids[7] = STOP  # accepted in the middle of a cycle
    server.begin(stopping=stopping, limited=limited)
    server.serve("stopping", 4, 8)
    server.serve("limited", 4, 5, 2)
    outputs = recorded(server)
    assert len(outputs) == 2
    assert_exact(outputs, stopping, 4)
    assert_exact(outputs, limited, 6)
    finished = {row.transcript.ids: row.transcript.finished for row in served_rows(server.folder)}
    assert finished == {tuple(stopping.ids[:8]): True, tuple(limited.ids[:10]): False}


def test_aborted_and_incomplete_requests_are_dropped(server):
    server.begin(aborted=request(4, 9), unread=request(), incomplete=request(4, 9), running=request())
    server.serve("aborted", 4, 3)
    server.recorder.end(["unread"])
    server.cycle(Rows("incomplete", 0, 4))
    server.cycle(Rows("incomplete", 6, 6))  # the drafter did not see a cycle
    server.recorder.end(["incomplete"])
    server.cycle(Rows("running", 0, 5))
    assert recorded(server) == {}
    with pytest.raises(ArtifactError, match="holds no recorded answers"):
        list(served_rows(server.folder))


def test_a_name_that_is_used_again_is_another_request(server):
    server.begin(a=request(4, 6))
    server.serve("a", 4, 3)  # aborted
    server.begin(a=request(3, 5))
    server.serve("a", 3, 4)
    outputs = recorded(server)
    assert len(outputs) == 1
    assert_exact(outputs, server.requests["a"])


def test_recording_stops_at_the_limit_with_one_line(tmp_path, caplog):
    line = f"drafterforge records no more traffic: {tmp_path} has reached record_limit_mb=1"
    for _ in range(2):  # the limit is the folder's
        server = Server(tmp_path, limit_mb=1)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "vllm.drafterforge"):
            for number in range(12):
                server.begin(**{f"r{number}": request(1200, 800, max_tokens=900)})
                server.serve(f"r{number}", 1200, 799)
            server.recorder.close()
        assert [record.message for record in caplog.records] == [line]
        assert 0.8 * 2**20 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.01 * 2**20
    assert 0 < len(list(served_rows(tmp_path))) < 12


def test_finished_records_are_written_while_serving(tmp_path):
    server = Server(tmp_path, flush_s=0.05)
    server.begin(a=request())
    server.serve("a", 5, 6)
    for _ in range(1000):
        if list(tmp_path.glob("*.arrow")):
            break
        threading.Event().wait(0.01)
    assert len(list(served_rows(tmp_path))) == 1
    server.recorder.close()


@pytest.mark.parametrize("damage", ["before the texts", "texts", "outputs"])
def test_shards_that_a_kill_cut_off_leave_the_others_readable(tmp_path, damage, caplog):
    for _ in range(2):
        server = Server(tmp_path)
        server.begin(a=request())
        server.serve("a", 5, 6)
        server.recorder.close()
    text, outputs = (sorted(tmp_path.glob(f"*.{ending}"))[0] for ending in ("arrow", "safetensors"))
    if damage == "before the texts":
        text.unlink()
    else:
        path = text if damage == "texts" else outputs
        path.write_bytes(path.read_bytes()[:20])
    rows = list(served_rows(tmp_path))
    assert len(rows) == (2 if damage == "outputs" else 1)
    captures = ServedCaptures(tmp_path, ExactOutputs(server))
    assert len(captures.shards) == (1 if damage == "outputs" else 2)


def test_a_slow_disk_delays_no_cycle(server, monkeypatch):
    disk, real = threading.Event(), served.write_bytes_atomic

    def write(path: Path, data: bytes) -> None:
        disk.wait(30)
        real(path, data)

    monkeypatch.setattr(served, "write_bytes_atomic", write)
    monkeypatch.setattr(capture, "SHARD_BYTES", 1)
    server.begin(a=request(), b=request())
    server.serve("a", 5, 6)
    server.serve("b", 5, 6)  # while the first shard waits for the disk
    assert not list(server.folder.iterdir())
    disk.set()
    outputs = recorded(server)
    for entry in server.requests.values():
        assert_exact(outputs, entry)


def test_requests_that_the_thread_cannot_follow_are_dropped_whole(server, monkeypatch):
    server.begin(a=request(), b=request(num_prompt=3))
    server.cycle(Rows("a", 0, 5))
    monkeypatch.setattr(capture, "QUEUE_BYTES", 0)
    server.cycle(Rows("a", 5, 2))
    monkeypatch.undo()
    server.cycle(Rows("a", 7, 4), Rows("b", 0, 3))
    server.cycle(Rows("b", 3, 6))
    server.recorder.end(["a", "b"])
    outputs = recorded(server)
    assert len(outputs) == 1
    assert_exact(outputs, server.requests["b"])


def test_beyond_its_memory_requests_are_recorded_as_text_alone(server, monkeypatch):
    monkeypatch.setattr(capture, "OPEN_BYTES", 12 * 4 * HIDDEN * 2)  # twelve tokens
    server.begin(a=request(), b=request())
    server.cycle(Rows("a", 0, 5))
    server.cycle(Rows("b", 0, 5))
    server.cycle(Rows("a", 5, 6))
    server.cycle(Rows("b", 5, 6))
    server.recorder.end(["a", "b"])
    outputs = recorded(server)
    assert outputs[tuple(server.requests["a"].ids)] is None
    assert_exact(outputs, server.requests["b"])


def test_a_failing_disk_ends_the_recording_and_not_the_server(server, monkeypatch, caplog):
    def write(path: Path, data: bytes) -> None:
        raise ArtifactError("the disk is full")

    monkeypatch.setattr(served, "write_bytes_atomic", write)
    monkeypatch.setattr(capture, "SHARD_BYTES", 1)
    with caplog.at_level(logging.WARNING, "vllm.drafterforge"):
        for name in "ab":
            server.begin(**{name: request()})
            server.serve(name, 5, 6)
        server.recorder.close()
    assert [record.message for record in caplog.records] == ["drafterforge records no more traffic: the disk is full"]
    assert list(server.folder.iterdir()) == []


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="record needs a folder"):
        RecordSettings("")
    with pytest.raises(ConfigError, match="record_limit_mb must be >= 1"):
        RecordSettings("records", 0)


def test_a_folder_that_cannot_be_used_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used .*; give another folder"):
        Recorder(RecordSettings(str(tmp_path / "file")), torch.device("cpu"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ConfigError, match=r"all users can read record=.*; type `chmod o-rwx"):
        RecordSettings(str(tmp_path / "open")).make_folder()
