"""Open connections: their number is limited, silent clients are closed, and failing accepts do not flood the log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

RESERVED_FILES = 64  # descriptors for everything but connections, and for those that are just being accepted
ACCEPT_BURST = 16  # connections that are accepted together, before the limit is checked
BACKLOG = 2048  # connections that the kernel keeps until they are accepted
RETRY_S = 0.5  # from a failed accept to the next one
LOG_INTERVAL_S = 10.0  # between two warnings of a kind


def connection_limit(max_connections: int) -> int:
    """How many connections may be open: `max_connections`, or fewer where the limit of open files is low."""
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if max_files == resource.RLIM_INFINITY:
        return max_connections
    return max(1, min(max_connections, max_files - RESERVED_FILES))


class RareWarning:
    """A warning that is logged at most once in `LOG_INTERVAL_S`."""

    def __init__(self) -> None:
        self.silent_until = 0.0

    def __call__(self, text: str, *values: object) -> None:
        """Log the warning, unless the last one is too recent."""
        now = time.monotonic()
        if now >= self.silent_until:
            self.silent_until = now + LOG_INTERVAL_S
            log.warning(text, *values)


class Connections:
    """The open connections of a server; at the limit a new one takes the place of the one that is silent longest."""

    def __init__(self, max_connections: int, read_timeout_s: float) -> None:
        """read_timeout_s: from a request's first byte, or its connection's start, to the end of its header."""
        self.limit, self.read_timeout_s = connection_limit(max_connections), read_timeout_s
        self.open: set[Connection] = set()
        self.warn = RareWarning()

    def add(self, connection: Connection) -> None:
        """Register a new connection; at the limit, close one whose client has not sent a complete request."""
        waiting = [other for other in self.open if other.waits_for_client] if len(self.open) >= self.limit else []
        if waiting:
            min(waiting, key=attrgetter("waiting_since")).drop()
            self.warn("%d connections are open, which is the limit; silent clients are closed", self.limit)
        self.open.add(connection)

    @property
    def overloaded(self) -> bool:
        """Whether there are more requests than connections may be open."""
        return sum(connection.has_header for connection in self.open) > self.limit


class Connection(H11Protocol):
    """Uvicorn's HTTP/1.1, which by itself waits for a request's header without a limit."""

    def __init__(self, registry: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.registry = registry
        self.header_timer: asyncio.TimerHandle | None = None
        self.waiting_since = self.loop.time()

    @property
    def has_header(self) -> bool:
        """Whether the header of a request has arrived, and its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing is to be done before the client sends more, or has read its last answer."""
        return not self.has_header or self.cycle.more_body or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self.registry.add(self)
        self._time_header()

    def data_received(self, data: bytes) -> None:
        """Read; bytes that do not complete a header do not prolong its time."""
        super().data_received(data)
        self._time_header()

    def on_response_complete(self) -> None:
        """Wait for another request, for which uvicorn has a timeout of its own until its first byte."""
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.registry.open.discard(self)
        self._stop_timer()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close now, whatever the client has not read."""
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
    """Accepts connections, a few at a time; uvicorn closes it as it would close asyncio's server.

    Asyncio's server accepts all that wait, and logs thousands of tracebacks when descriptors run out.
    """

    def __init__(self, sock: socket.socket, connect: Callable[[], Connection]) -> None:
        """connect: makes the protocol of a new connection."""
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
            except ConnectionAbortedError:  # the client is gone already
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
        """Accept no more connections."""
        self.task.cancel()

    async def wait_closed(self) -> None:
        """Return once nothing is accepted any more."""
        await asyncio.wait([self.task])
