"""Streaming responses: answers as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from drafterforge.server.exchange import Exchange
from drafterforge.server.failures import ApiError, HungUpError, shutting_down
from drafterforge.server.wire import DONE, CompletionWire, event, usage
from drafterforge.server.worker import Update

log = logging.getLogger(__name__)

LINGER_S = 10.0  # for a client to read the rest of the stream after the request's deadline
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class AnswerStream(StreamingResponse):
    """The stream of a request whose first update has arrived."""

    def __init__(
        self,
        exchange: Exchange,
        wire: CompletionWire,
        first: tuple[int, Update],
        num_prompt_tokens: int,
        with_usage: bool,
        count: Callable[[int], None],
    ) -> None:
        """with_usage: end with the number of tokens.  count: called with the status when the stream ends."""
        super().__init__(self._events(first), media_type="text/event-stream", headers=HEADERS)
        self.exchange, self.wire, self.count = exchange, wire, count
        self.num_prompt_tokens, self.with_usage = num_prompt_tokens, with_usage
        self.ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; unfinished answers are cancelled at its end."""
        try:
            async with asyncio.timeout_at(self.exchange.deadline + LINGER_S):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            log.warning("a client did not read its answer within %g s", self.exchange.timeout_s + LINGER_S)
        except asyncio.CancelledError:  # the server stops at once
            if self.ended:
                raise
            self._end(shutting_down().status)
            content = event(shutting_down().body) + DONE
            await send({"type": "http.response.body", "body": content.encode(), "more_body": False})
        finally:
            self.exchange.close()
            if not self.ended:
                self.count(HungUpError().status)

    async def _events(self, indexed_update: tuple[int, Update] | None) -> AsyncIterator[str]:
        opened, status = set(), 200
        try:
            while indexed_update is not None:
                index, update = indexed_update
                if index not in opened and (opening := self.wire.opening(index)):
                    yield self._event(opening)
                opened.add(index)
                if update.text:
                    yield self._event(self.wire.chunk(index, update.text))
                if update.stop_reason:
                    yield self._event(self.wire.end(index, update.stop_reason))
                indexed_update = await self.exchange.next()
            if self.with_usage:
                yield event(self.wire.usage_chunk(usage(self.num_prompt_tokens, self.exchange.choices)))
        except ApiError as error:  # status 200 was sent already, so the error becomes an event
            status = error.status
            yield event(error.body)
        self._end(status)
        yield DONE

    def _end(self, status: int) -> None:
        self.ended = True
        self.count(status)

    def _event(self, content: dict[str, Any]) -> str:
        return event(content | {"usage": None} if self.with_usage else content)
