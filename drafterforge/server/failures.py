"""What can go wrong with a request: an HTTP status, and the error object that OpenAI's clients read."""

from __future__ import annotations

from http import HTTPStatus

RETRY_AFTER = {429: "1", 503: "5"}  # seconds after which it is worth another try


class ApiError(Exception):
    """A request that is not answered; `param` names its field, `code` is for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, dict]:
        """As OpenAI's API words it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """What a client should know before it tries again."""
        found = {"Retry-After": RETRY_AFTER[self.status]} if self.status in RETRY_AFTER else {}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class HungUpError(ApiError):
    """The client has closed the connection; nobody reads this status, but it is counted."""

    def __init__(self) -> None:
        super().__init__(499, "the client hung up")


def plain_error(status: int) -> ApiError:
    """What HTTP itself says about a status."""
    return ApiError(status, HTTPStatus(status).phrase.lower())


def queue_full(under_way: int) -> ApiError:
    """More than the server lets wait."""
    return ApiError(429, f"{under_way} answers are under way or waiting; try again later", code="queue_full")


def shutting_down() -> ApiError:
    """No more answers."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


def overloaded() -> ApiError:
    """More requests than there may be connections."""
    return ApiError(503, "too many requests are being answered; try again later", code="overloaded")


def timed_out(seconds: float) -> ApiError:
    """No whole answer in the time that a request has."""
    wanted = "ask for fewer tokens, or start the server with a larger timeout_s"
    return ApiError(504, f"the answer took longer than {seconds:g} s; {wanted}", code="timeout")


def engine_failed() -> ApiError:
    """A bug, or a device that gave up."""
    return ApiError(500, "decoding failed; the server's log has the reason", code="decoding_failed")
