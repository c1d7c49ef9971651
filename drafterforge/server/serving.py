"""Run uvicorn on a socket until a signal arrives; then running answers have some time to finish."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from drafterforge.config.progress import say
from drafterforge.errors import ConfigError, shorten
from drafterforge.server.connections import Connection, Listener

CLOSING_S = 5  # for connections to close after their answers have ended
REFUSAL_S = 1  # to refuse running requests after a second signal
IDLE_S = 30  # for which an idle connection stays open
TICK_S = 0.05


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address; called before the target is loaded, to report a wrong address early."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, UnicodeError) as error:  # the second for a host that is no name
        raise _unusable(f"host={shorten(host)} port={port}", error) from error
    return sock


def _unusable(address: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", "it is no host name")
    return ConfigError(f"cannot serve at {address} ({reason}); type host= and port= of a free address")


def address_of(sock: socket.socket) -> str:
    """The URL of the server."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


class Server(uvicorn.Server):
    """A uvicorn server that lets running answers finish after a signal, and exits with code 0."""

    def __init__(self, app: FastAPI, grace_s: float, ready: Callable[[], None] = lambda: None) -> None:
        """grace_s: time for running answers after a signal.  ready: called when the server accepts requests."""
        # Uvicorn warns about malformed requests, with which anybody could fill the log.
        quiet = {"log_level": "error", "access_log": False, "server_header": False}
        times = {"timeout_graceful_shutdown": CLOSING_S, "timeout_keep_alive": IDLE_S}
        # Without proxy_headers a client cannot invent the address by which `learn.client_tokens` counts.
        super().__init__(
            uvicorn.Config(app, lifespan="on", http="h11", ws="none", proxy_headers=False, **quiet, **times)
        )
        self.worker, self.connections = app.state.service.worker, app.state.service.connections
        self.grace_s, self.ready = grace_s, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        try:
            self.servers = [Listener(sock, self._connect) for sock in sockets or []]
        except OSError as error:  # another program took the address while the target was loading
            raise _unusable(" ".join(map(address_of, sockets or [])), error) from error
        self.ready()

    def _connect(self) -> Connection:
        shared = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return Connection(self.connections, **shared)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after the first signal when running answers have ended, after the second at once."""
        self.force_exit, self.should_exit = self.should_exit, True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; end if nothing is decoded any more, so that a supervisor starts a new server."""
        self.should_exit = self.should_exit or self.worker.dead
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish accepted answers, refuse new ones, then close."""
        if num_jobs := self.worker.num_jobs:
            say(f"accepted answers to finish: {num_jobs}; a second signal ends at once")
        self.worker.close(self.grace_s)
        limit = time.monotonic() + self.grace_s + CLOSING_S
        while self.worker.alive and not self.force_exit and time.monotonic() < limit:
            await asyncio.sleep(TICK_S)
        if self.force_exit:
            await self._refuse()
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # otherwise uvicorn logs an error about a cancelled task

    async def _refuse(self) -> None:
        """End running requests with an error."""
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=REFUSAL_S)
        for connection in list(self.connections.open):
            if not connection.waits_for_client:
                connection.drop()
