"""One HTTP request: read its body within limits, and pass answers from the worker's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from drafterforge.runtime.rows import Row
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.server.failures import ApiError, HungUpError, engine_failed, queue_full, shutting_down, timed_out
from drafterforge.server.wire import Choice
from drafterforge.server.worker import FAILED, ClosedError, Job, QueueFullError, Update, Worker

DRAIN_FACTOR = 16  # a body above the limit is read up to this multiple, as many clients read errors only after sending
AnswerSpec = tuple[list[int], StopRule, Sampling]  # prompt, where the answer ends, how it is sampled
Result = TypeVar("Result")


class Exchange:
    """A request and its growing answers."""

    def __init__(self, worker: Worker, timeout_s: float) -> None:
        """timeout_s: from now to the end of the last answer."""
        self.worker, self.timeout_s = worker, timeout_s
        self.loop = asyncio.get_running_loop()
        self.deadline = self.loop.time() + timeout_s
        self.updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self.jobs: list[Job] = []
        self.choices: list[Choice] = []

    async def read_body(self, request: Request, max_bytes: int, pause_s: float) -> bytes:
        """The body of the request; ApiError if it is too large, or if `pause_s` pass between two of its parts."""
        parts, size = [], 0
        try:
            async with asyncio.timeout_at(self._next_limit(pause_s)) as limit:
                async for part in request.stream():
                    limit.reschedule(self._next_limit(pause_s))
                    size += len(part)
                    if size <= max_bytes:
                        parts.append(part)
                    elif size > DRAIN_FACTOR * max_bytes:
                        break
        except TimeoutError:
            limits = f"{pause_s:g} s between two parts of it, {self.timeout_s:g} s in total"
            raise ApiError(408, f"the body arrived too slowly; the limits are {limits}", code="timeout") from None
        except ClientDisconnect:
            raise HungUpError from None
        if size > max_bytes:
            raise ApiError(413, f"the body is larger than this server's limit of {max_bytes} bytes", code="too_large")
        return b"".join(parts)

    def _next_limit(self, pause_s: float) -> float:
        return min(self.deadline, self.loop.time() + pause_s)

    def submit(self, specs: Sequence[AnswerSpec], record: Callable[[Row], None] | None = None) -> None:
        """Queue the answers at the worker.  record: called with each answer at its end, in the worker's thread."""
        jobs = [Job(*spec, partial(self._deliver, index), record) for index, spec in enumerate(specs)]
        try:
            self.worker.submit(jobs)
        except QueueFullError:
            raise queue_full(self.worker.num_jobs) from None
        except ClosedError:
            raise shutting_down() from None
        self.jobs, self.choices = jobs, [Choice() for _ in jobs]

    def _deliver(self, index: int, update: Update) -> None:
        """Pass an update to the event loop; called in the worker's thread."""
        with suppress(RuntimeError):  # the loop is closed, so nobody waits for the answer
            self.loop.call_soon_threadsafe(self.updates.put_nowait, (index, update))

    async def next(self) -> tuple[int, Update] | None:
        """The next update of any answer, with the answer's index; None when all answers have ended."""
        if all(choice.stop_reason for choice in self.choices):
            return None
        try:
            async with asyncio.timeout_at(self.deadline):
                index, update = await self.updates.get()
        except TimeoutError:
            raise timed_out(self.timeout_s) from None
        if update.failure:
            raise engine_failed() if update.failure == FAILED else shutting_down()
        choice = self.choices[index]
        choice.text += update.text
        choice.tokens.extend(update.tokens)
        choice.num_tokens, choice.stop_reason = update.num_tokens, update.stop_reason
        return index, update

    async def finish(self) -> list[Choice]:
        """The complete answers."""
        while await self.next() is not None:
            pass
        return self.choices

    def close(self) -> None:
        """Cancel the answers that have not ended."""
        self.worker.drop(self.jobs)


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`; HungUpError if the client closes the connection first."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HungUpError
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
