"""Errors of requests: an HTTP status, and the error object that OpenAI's clients read."""

from __future__ import annotations

from http import HTTPStatus

RETRY_AFTER = {429: "1", 503: "5"}  # seconds after which a client may try again, by status


class ApiError(Exception):
    """A request that cannot be answered.  param: the field at fault.  code: the kind of error, for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, dict]:
        """The error object of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        retry = {"Retry-After": RETRY_AFTER[self.status]} if self.status in RETRY_AFTER else {}
        return retry | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class HungUpError(ApiError):
    """The client has closed the connection; the status is not sent, but counted in the metrics."""

    def __init__(self) -> None:
        super().__init__(499, "the client hung up")


def plain_error(status: int) -> ApiError:
    """An error with the standard phrase of an HTTP status."""
    return ApiError(status, HTTPStatus(status).phrase.lower())


def no_such_path() -> ApiError:
    paths = "/v1/chat/completions, /v1/completions, /v1/models, /metrics and /health"
    return ApiError(404, f"not found; the server has {paths}")


def queue_full(num_answers: int) -> ApiError:
    """num_answers: running and waiting ones."""
    return ApiError(429, f"the queue is full with {num_answers} answers; try again later", code="queue_full")


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


def overloaded() -> ApiError:
    return ApiError(503, "too many requests are being answered; try again later", code="overloaded")


def timed_out(seconds: float) -> ApiError:
    remedy = "ask for fewer tokens, or start the server with a larger timeout_s"
    return ApiError(504, f"the answer took longer than {seconds:g} s; {remedy}", code="timeout")


def engine_failed() -> ApiError:
    return ApiError(500, "decoding failed; the server's log gives the reason", code="decoding_failed")
