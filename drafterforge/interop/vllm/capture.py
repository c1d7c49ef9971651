"""Records served traffic for training: texts of finished requests, and the target's features and states.

A cycle hands its tensors to a thread, which assembles texts and writes the shards of `drafterforge.data.served`; so a
cycle waits neither for the device nor for the disk.  `drafterforge prepare-data data=recorded path=FOLDER` reads them.
Axes: B requests, R flattened rows, H hidden of the target.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path

import torch
from torch import Tensor

from drafterforge.data.answers import Answer
from drafterforge.data.served import ServedAnswer, write_shard
from drafterforge.errors import ConfigError

logger = logging.getLogger("vllm.drafterforge")
MB = 1 << 20
SHARD_BYTES = 64 * MB  # of finished answers that wait for their shard
FLUSH_S = 30.0  # seconds that they wait at most; a kill loses these
OPEN_BYTES = 1024 * MB  # features of running requests; requests beyond are recorded as text alone
QUEUE_BYTES = 512 * MB  # tensors that the thread has not read; the requests of cycles beyond are not recorded


@dataclass(frozen=True)
class RecordSettings:
    """Where served traffic is recorded, and how much of it."""

    folder: str
    limit_mb: int = 1024  # size of the folder at which recording stops

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("record needs a folder")
        if self.limit_mb < 1:
            raise ConfigError(f"record_limit_mb must be >= 1, got {self.limit_mb}")

    def make_folder(self) -> Path:
        """The folder, which is made if it is not there; ConfigError if it cannot be written."""
        folder = Path(self.folder).expanduser()
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)  # others must not read what clients ask
            reason = "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "permission denied"
            if folder.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH):
                raise ConfigError(f"all users can read record={self.folder}; type `chmod o-rwx {folder}`")
        except OSError as error:
            reason = error.strerror
        if reason:
            raise ConfigError(f"record={self.folder} cannot be used ({reason}); give another folder")
        return folder


@dataclass
class Recording:
    """A request that is being recorded."""

    id: str
    prompt: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    answer: list[int] = field(default_factory=list)  # its last token was not read by the target yet
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # features and states of the first tokens
    num_captured: int = 0
    num_bytes: int = 0
    has_gap: bool = False  # tokens of the answer are missing
    has_outputs: bool = True  # features and states of all tokens before were captured

    def add_text(self, position: int, tokens: list[int], next_token: int) -> None:
        """Add tokens that the target read, and the one that it emitted after them.

        position: of the first token; later tokens of the text are replaced, as after a preemption.
        """
        start, end = position - len(self.prompt), position + len(tokens) - len(self.prompt)  # in the answer
        self.has_gap |= start > len(self.answer)
        if end >= 0:  # else vLLM has sampled no token yet
            self.answer = self.answer[: max(start, 0)] + tokens[max(-start, 0) :] + [next_token]

    def add_outputs(self, position: int, features: Tensor, states: Tensor) -> None:
        """Add features [C, 3H] and states [C, H] of tokens; the prompt's cached tokens have none."""
        if position > self.num_captured:
            self.drop_outputs()
        if not self.has_outputs:
            return
        while self.num_captured > position:
            last = self.parts.pop()
            self.num_captured -= len(last[0])
            self.num_bytes -= sum(tensor.nbytes for tensor in last)
            if self.num_captured < position:
                count = position - self.num_captured
                self._append(last[0][:count].clone(), last[1][:count].clone())
        self._append(features.clone(), states.clone())

    def drop_outputs(self) -> None:
        """Keep the text alone."""
        self.parts, self.num_captured, self.num_bytes, self.has_outputs = [], 0, 0, False

    def finish(self) -> ServedAnswer | None:
        """The record of a request that ended by itself or at its limit; None if it was aborted, or tokens are missing.

        vLLM does not tell workers which requests were aborted.  It aborts those that end with a stop string, too.
        """
        ends = [index for index, token in enumerate(self.answer) if token in self.stop_ids]
        length = min(ends[0] + 1 if ends else len(self.answer), self.max_tokens)
        finished = bool(ends) and length == ends[0] + 1
        if self.has_gap or length < 1 or not (finished or length == self.max_tokens):
            return None
        ids, num_prompt = self.prompt + self.answer[:length], len(self.prompt)
        mask = [0] * num_prompt + [1] * length
        answer = Answer(self.id, "", "", "train", ids, mask, num_prompt, length, finished)
        if self.num_captured < len(ids) - 1:
            return ServedAnswer(answer)
        features, states = (torch.cat(tensors)[: len(ids)] for tensors in zip(*self.parts, strict=True))
        return ServedAnswer(answer, features, states)

    def _append(self, features: Tensor, states: Tensor) -> None:
        self.parts.append((features, states))
        self.num_captured += len(features)
        self.num_bytes += features.nbytes + states.nbytes


class Recorder:
    """Records the requests of one engine process.  Only one rank of a tensor-parallel target records."""

    def __init__(self, settings: RecordSettings, device: torch.device, flush_s: float = FLUSH_S) -> None:
        self.folder, self.limit = settings.make_folder(), settings.limit_mb * MB
        self.device, self.flush_s = torch.device(device), flush_s
        self.written = sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        self.run, self.num_answers, self.num_shards = f"{int(time.time()):x}-{secrets.token_hex(2)}", 0, 0
        self.is_recording = True
        self.names: set[str] = set()  # requests that are recorded, as the engine knows them
        self.bytes_in, self.bytes_out = 0, 0  # of cycles' tensors, handed to the thread and read by it
        # of the thread:
        self.recordings: dict[str, Recording] = {}
        self.pending: list[ServedAnswer] = []
        self.open_bytes, self.pending_bytes, self.pending_since = 0, 0, 0.0
        self.tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="drafterforge-recorder", daemon=True)
        self.thread.start()
        Finalize(None, self.close, exitpriority=10)

    def begin(self, request: str, prompt: Sequence[int], max_tokens: int, stop_ids: Collection[int]) -> None:
        """Record a request from its first cycle on; a request that is recorded already goes on.

        max_tokens: limit of its answer, the model's length considered.  stop_ids: tokens that end it.
        """
        if not self.is_recording or request in self.names or not prompt:
            return
        self.names.add(request)
        self.tasks.put(partial(self._begin, request, list(prompt), max_tokens, frozenset(stop_ids)))

    def cycle(
        self,
        requests: Sequence[str],
        starts: Tensor,
        ends: Tensor,
        tokens: Tensor,
        next_tokens: Tensor,
        positions: Tensor,
        features: Tensor,
        states: Tensor,
    ) -> None:
        """Record the committed rows of a cycle.

        starts, ends: first and last committed row of each request, [B].  tokens, positions: of each row, [R].
        next_tokens: emitted after the last committed row, [B].  features: [R, 3H].  states: final states, [R, H].
        """
        if not self.is_recording or self.names.isdisjoint(requests):
            return
        half = torch.bfloat16 if features.dtype in (torch.float32, torch.float64) else features.dtype
        tensors = (starts, ends, tokens, next_tokens, positions, features.to(half), states.to(half))
        num_bytes = tensors[5].nbytes + tensors[6].nbytes
        if self.bytes_in - self.bytes_out + num_bytes > QUEUE_BYTES:
            self.tasks.put(partial(self._drop, list(requests)))
            return
        self.bytes_in += num_bytes
        copy_done = None
        if self.device.type == "cuda":
            pinned = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in tensors]
            tensors = tuple(host.copy_(x, non_blocking=True) for host, x in zip(pinned, tensors, strict=True))
            copy_done = torch.cuda.Event()
            copy_done.record()
        else:  # vLLM reuses its buffers in the next cycle
            tensors = tuple(x.clone() for x in tensors)
        self.tasks.put(partial(self._add, list(requests), tensors, copy_done))

    def end(self, requests: Collection[str]) -> None:
        """Keep the records of requests that finished, and drop those of aborted ones."""
        if names := self.names.intersection(requests):
            self.names -= names
            self.tasks.put(partial(self._end, names))

    def close(self) -> None:
        """Write the finished records and end the thread; running requests are dropped."""
        self.tasks.put(None)
        self.thread.join(timeout=30)

    # --- in the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            wait_s = max(self.pending_since + self.flush_s - time.monotonic(), 0) if self.pending else None
            try:
                task = self.tasks.get(timeout=wait_s)
            except queue.Empty:
                task = self._flush
            try:
                if task is not None:
                    task()
                is_due = time.monotonic() >= self.pending_since + self.flush_s
                if task is None or is_due or self.pending_bytes >= SHARD_BYTES:
                    self._flush()
            except Exception as error:  # recording must never break serving
                self._stop(str(error))
                self.pending = []
            if task is None:
                return

    def _begin(self, request: str, prompt: list[int], max_tokens: int, stop_ids: frozenset[int]) -> None:
        if self.is_recording:
            self.recordings[request] = Recording(f"{self.run}-{self.num_answers:06d}", prompt, max_tokens, stop_ids)
            self.num_answers += 1

    def _add(self, requests: list[str], tensors: Sequence[Tensor], copy_done: torch.cuda.Event | None) -> None:
        if copy_done is not None:
            copy_done.synchronize()
        starts, ends, tokens, next_tokens, positions, features, states = tensors
        self.bytes_out += features.nbytes + states.nbytes
        rows = zip(requests, starts.tolist(), ends.tolist(), next_tokens.tolist(), strict=True)
        for request, start, end, next_token in rows:
            recording = self.recordings.get(request)
            if recording is None:
                continue
            position, part = int(positions[start]), slice(start, end + 1)
            recording.add_text(position, tokens[part].tolist(), next_token)
            before = recording.num_bytes
            recording.add_outputs(position, features[part], states[part])
            if self.open_bytes - before + recording.num_bytes > OPEN_BYTES:
                recording.drop_outputs()
            self.open_bytes += recording.num_bytes - before

    def _drop(self, requests: Collection[str]) -> list[Recording]:
        recordings = [self.recordings.pop(request) for request in requests if request in self.recordings]
        self.open_bytes -= sum(recording.num_bytes for recording in recordings)
        return recordings

    def _end(self, requests: Collection[str]) -> None:
        for recording in self._drop(requests):
            served = recording.finish()
            if served is None:
                continue
            outputs = (served.features.nbytes + served.states.nbytes) if served.features is not None else 0
            num_bytes = outputs + 8 * len(served.answer.input_ids)
            if self.written + self.pending_bytes + num_bytes > self.limit:
                self._stop(f"{self.folder} has reached record_limit_mb={self.limit // MB}")
                return
            if not self.pending:
                self.pending_since = time.monotonic()
            self.pending.append(served)
            self.pending_bytes += num_bytes

    def _flush(self) -> None:
        if not self.pending:
            return
        self.written += write_shard(self.folder, f"{self.run}-{self.num_shards:05d}", self.pending)
        self.num_shards += 1
        self.pending, self.pending_bytes = [], 0

    def _stop(self, reason: str) -> None:
        """Record nothing more; what is finished is still written."""
        if self.is_recording:
            logger.warning("drafterforge records no more traffic: %s", reason)
        self.is_recording = False
        self.recordings, self.open_bytes = {}, 0
