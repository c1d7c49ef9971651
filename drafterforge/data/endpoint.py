"""A client of an OpenAI-compatible server that repeats requests which failed for reasons that may pass."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from drafterforge.config.serving import API_KEY
from drafterforge.errors import ServerError, shorten

log = logging.getLogger(__name__)

CONNECT_S = 20.0  # to open a connection
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # between two attempts; doubled from one to the next
LONGEST_RETRY_AFTER_S = 600.0  # that a server may demand
WARNING_S = 30.0  # between two warnings about failed attempts
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}  # statuses that may pass
Result = TypeVar("Result")


class IncompleteError(Exception):
    """A response that is cut or malformed, so that the request is repeated."""


class _AttemptError(Exception):
    """An attempt that failed for a reason that may pass.  wait_s: what the server demands before the next one."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Endpoint:
    """A server; requests are sent inside `async with`, at most `concurrency` at a time."""

    def __init__(self, url: str, *, concurrency: int, timeout_s: float, retries: int) -> None:
        """url: up to and including `/v1`.  timeout_s: for a response.  retries: further attempts of a request."""
        self.url, self.concurrency, self.timeout_s, self.retries = url, concurrency, timeout_s, retries
        self.failures = 0  # failed attempts so far
        self._random = random.Random()  # global seeds stay as they are
        self._warned_at = -WARNING_S

    async def __aenter__(self) -> Endpoint:
        key = os.environ.get(API_KEY, "")
        self._slots = asyncio.Semaphore(self.concurrency)
        self._client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s), pool=None),
            limits=httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
            trust_env=not _is_local(self.url),  # a proxy cannot reach this machine's servers
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, read: Callable[[Any], Result]) -> Result:
        """`read` of the JSON at a path; a server that does not listen is not waited for."""
        return await self._repeat("GET", path, None, read, waits=False)

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Result]) -> Result:
        """`read` of the JSON response, which raises IncompleteError if the response is cut or malformed."""
        async with self._slots:
            return await self._repeat("POST", path, body, read)

    async def _repeat(
        self, method: str, path: str, body: Mapping[str, Any] | None, read: Callable[[Any], Result], waits: bool = True
    ) -> Result:
        for attempt in range(self.retries + 1):
            try:
                return await self._attempt(method, path, body, read, waits)
            except _AttemptError as error:
                self.failures += 1
                if attempt == self.retries:
                    raise ServerError(
                        f"{self.url} failed {attempt + 1} times in a row: {error}; finished shards are kept, so type "
                        "the same command again when it answers (data.retries sets how often it is tried)"
                    ) from error
                self._warn(error)
                await asyncio.sleep(max(error.wait_s, self._wait_s(attempt)))
        raise AssertionError

    def _wait_s(self, attempt: int) -> float:
        """Doubles from attempt to attempt; random, so that requests that failed together do not return together."""
        return self._random.uniform(0.5, 1.0) * min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S)

    def _warn(self, error: _AttemptError) -> None:
        if time.monotonic() - self._warned_at >= WARNING_S:
            self._warned_at = time.monotonic()
            log.warning("%s: %s; trying again (failed attempts so far: %d)", self.url, error, self.failures)

    async def _attempt(
        self, method: str, path: str, body: Mapping[str, Any] | None, read: Callable[[Any], Result], waits: bool
    ) -> Result:
        try:
            async with asyncio.timeout(self.timeout_s):  # httpx2 limits the pauses, not their sum
                response = await self._client.request(method, f"{self.url}/{path}", json=body)
        except httpx2.UnsupportedProtocol as error:
            raise ServerError(f"data.endpoint={self.url} is no address; type {EXAMPLE}") from error
        except httpx2.ConnectError as error:
            if not waits:
                reason = shorten(error)
                raise ServerError(
                    f"no server answers at {self.url} ({reason}); start one, or type {EXAMPLE}"
                ) from error
            raise _AttemptError(f"no connection ({shorten(error)})") from error
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _AttemptError(f"no answer within {self.timeout_s:g} s (data.timeout_s)") from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _AttemptError(f"a cut answer ({shorten(error) or type(error).__name__})") from error
        if response.status_code in PASSING:
            raise _AttemptError(_describe(response), _retry_after_s(response))
        if not response.is_success:
            raise self._refusal(path, response)
        try:
            return read(response.json())
        except ValueError as error:
            raise _AttemptError("a cut answer (not JSON)") from error
        except IncompleteError as error:
            raise _AttemptError(str(error)) from error

    def _refusal(self, path: str, response: httpx2.Response) -> ServerError:
        """The error of a request that would be refused again."""
        status = _describe(response)
        if response.status_code in (401, 403):
            return ServerError(f"{self.url} refused the key: {status}; set {API_KEY}=KEY in the environment")
        if response.status_code == 404 and path == "models":
            return ServerError(f"{self.url} is no OpenAI-compatible server: {status}; type {EXAMPLE}")
        return ServerError(f"{self.url}/{path} refused a request: {status}")


EXAMPLE = "data.endpoint=http://HOST:PORT/v1"


def _describe(response: httpx2.Response) -> str:
    """Status and message of an error response."""
    try:
        content = response.json()
        error = content.get("error") or content
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, AttributeError, TypeError):
        message = response.text
    return f"status {response.status_code} ({shorten(message, 200) or response.reason_phrase})"


def _retry_after_s(response: httpx2.Response) -> float:
    """Seconds that the header Retry-After demands, as a number or a date; 0 without it."""
    value = response.headers.get("Retry-After", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if seconds == seconds else 0.0


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
