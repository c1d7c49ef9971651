"""Limit open connections, close silent ones, and keep failing accepts from flooding the log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

RESERVED_FILES = 64  # file descriptors for other purposes than open connections
ACCEPT_BURST = 16  # connections accepted before the limit is checked
BACKLOG = 2048  # connections that the kernel queues
RETRY_S = 0.5  # between a failed accept and the next one
LOG_INTERVAL_S = 10.0  # between two warnings of the same kind


def connection_limit(max_connections: int) -> int:
    """The largest number of open connections: `max_connections`, or less if the limit of open files is low."""
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if max_files == resource.RLIM_INFINITY:
        return max_connections
    return max(1, min(max_connections, max_files - RESERVED_FILES))


class RareWarning:
    """A warning that is logged at most once in `LOG_INTERVAL_S`."""

    def __init__(self) -> None:
        self.silent_until = 0.0

    def __call__(self, text: str, *values: object) -> None:
        now = time.monotonic()
        if now >= self.silent_until:
            self.silent_until = now + LOG_INTERVAL_S
            log.warning(text, *values)


class Connections:
    """The open connections of a server; at the limit, a new one replaces the one that is silent the longest."""

    def __init__(self, max_connections: int, read_timeout_s: float) -> None:
        """read_timeout_s: from the start of a connection or the first byte of a request to the end of its header."""
        self.limit, self.read_timeout_s = connection_limit(max_connections), read_timeout_s
        self.open: set[Connection] = set()
        self.warn = RareWarning()

    def add(self, connection: Connection) -> None:
        """Register a new connection; at the limit, close one whose client has not sent a complete request."""
        at_limit = len(self.open) >= self.limit
        silent = [candidate for candidate in self.open if candidate.waits_for_client] if at_limit else []
        if silent:
            min(silent, key=attrgetter("waiting_since")).drop()
            self.warn("the limit of %d open connections is reached; silent connections are closed", self.limit)
        self.open.add(connection)

    @property
    def overloaded(self) -> bool:
        """Whether more requests are being answered than connections may be open."""
        return sum(connection.has_header for connection in self.open) > self.limit


class Connection(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with a timeout for the header of a request, which uvicorn does not have."""

    def __init__(self, registry: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.registry = registry
        self.header_timer: asyncio.TimerHandle | None = None
        self.waiting_since = self.loop.time()

    @property
    def has_header(self) -> bool:
        """Whether a request is being answered: its header has arrived, and its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Whether the server waits for the client to send more, or to read the end of an answer."""
        return not self.has_header or self.cycle.more_body or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.registry.add(self)
        self._time_header()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # a request begins, perhaps after a long silence
            self.waiting_since = self.loop.time()
        self._time_header()  # does not restart a running timer, so slowly sent bytes gain no time

    def send_400_response(self, msg: str) -> None:
        """Close the connection of a client that breaks the protocol, after a 400 where a response may still begin."""
        if self.has_header:
            self.cycle.disconnected = True  # the request's own response is not sent
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()  # uvicorn itself limits the time until the next request's first byte
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.open.discard(self)
        self._stop_timer()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once, without sending what is still in its buffers."""
        self.registry.open.discard(self)
        self.transport.abort()

    def _time_header(self) -> None:
        if self.has_header:
            self._stop_timer()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(self.registry.read_timeout_s, self.drop)

    def _stop_timer(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None


class Listener:
    """Accepts connections, a few at a time, in place of asyncio's server; uvicorn closes it in the same way.

    Asyncio's server accepts all queued connections, and logs thousands of tracebacks if file descriptors run out.
    """

    def __init__(self, sock: socket.socket, connect: Callable[[], Connection]) -> None:
        """connect: creates the protocol of a new connection."""
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self.sock, self.connect, self.warn = sock, connect, RareWarning()
        self.task = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        opening: set[asyncio.Task] = set()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self.sock)
            except ConnectionAbortedError:  # the client has closed it already
                continue
            except OSError as error:
                self.warn("a connection cannot be accepted: %s", error.strerror)
                await asyncio.sleep(RETRY_S)
                continue
            task = loop.create_task(loop.connect_accepted_socket(self.connect, accepted))
            opening.add(task)
            task.add_done_callback(opening.discard)
            if len(opening) >= ACCEPT_BURST:
                await asyncio.wait(opening)

    def close(self) -> None:
        self.task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait([self.task])
