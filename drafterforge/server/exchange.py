"""One HTTP request: its body read within bounds, its answers brought from the worker's thread, its client watched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.server.failures import ApiError, HungUpError, engine_failed, queue_full, shutting_down, timed_out
from drafterforge.server.wire import Choice
from drafterforge.server.worker import FAILED, ClosedError, Job, QueueFullError, Update, Worker

DRAINED = 16  # times the limit of a body: so much of a larger one is read, as clients listen once they have spoken
Wanted = tuple[list[int], StopRule, Sampling]  # prompt, where the answer ends, how it is sampled
Result = TypeVar("Result")


class Exchange:
    """The answers of a request, as they grow."""

    def __init__(self, worker: Worker, timeout_s: float) -> None:
        """timeout_s: from now, for everything."""
        self.worker, self.timeout_s = worker, timeout_s
        self.loop = asyncio.get_running_loop()
        self.deadline = self.loop.time() + timeout_s
        self.updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self.jobs: list[Job] = []
        self.choices: list[Choice] = []

    async def read_body(self, request: Request, most: int, pause_s: float) -> bytes:
        """The body, of at most `most` bytes whatever its headers say, with at most `pause_s` between its parts."""
        parts, size = [], 0
        try:
            async with asyncio.timeout_at(self._next_limit(pause_s)) as limit:
                async for part in request.stream():
                    limit.reschedule(self._next_limit(pause_s))
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    elif size > DRAINED * most:
                        break
        except TimeoutError:
            wanted = f"more of it within {pause_s:g} s, all of it within {self.timeout_s:g} s"
            raise ApiError(408, f"the body came too slowly; wanted {wanted}", code="timeout") from None
        except ClientDisconnect:
            raise HungUpError from None
        if size > most:
            raise ApiError(413, f"the body has more than {most} bytes, the most this server reads", code="too_large")
        return b"".join(parts)

    def _next_limit(self, pause_s: float) -> float:
        return min(self.deadline, self.loop.time() + pause_s)

    def submit(self, wanted: Sequence[Wanted]) -> None:
        """Ask the worker for answers."""
        jobs = [Job(*one, deliver=partial(self._hand_over, index)) for index, one in enumerate(wanted)]
        try:
            self.worker.submit(jobs)
        except QueueFullError:
            raise queue_full(self.worker.under_way) from None
        except ClosedError:
            raise shutting_down() from None
        self.jobs, self.choices = jobs, [Choice() for _ in jobs]

    def _hand_over(self, index: int, update: Update) -> None:
        """In the worker's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.updates.put_nowait, (index, update))

    async def next(self) -> tuple[int, Update] | None:
        """The next news of any answer, or None when all have ended."""
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
        choice.num_tokens, choice.stop_reason = update.num_tokens, update.stop_reason
        return index, update

    async def finish(self) -> list[Choice]:
        """The whole answers."""
        while await self.next() is not None:
            pass
        return self.choices

    def close(self) -> None:
        """Nobody waits for what is still to come."""
        self.worker.drop(self.jobs)


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """The result of some work, unless the client hangs up first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HungUpError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
