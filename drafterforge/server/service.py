"""From a request's bytes to its response: read, hand to the worker, wait or stream."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from drafterforge.config.serving import ServeConfig
from drafterforge.errors import DrafterforgeError, PromptTooLongError
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.server.connections import Connections
from drafterforge.server.exchange import Exchange, Wanted, while_connected
from drafterforge.server.failures import ApiError, shutting_down
from drafterforge.server.metrics import Metrics
from drafterforge.server.protocol import AnswerRequest, ChatRequest, read_request
from drafterforge.server.streaming import AnswerStream
from drafterforge.server.wire import ChatWire, CompletionWire, usage
from drafterforge.server.worker import Worker


class Service:
    """An engine that answers HTTP requests."""

    def __init__(self, engine: Engine, model: str, cfg: ServeConfig) -> None:
        """model: the name that clients ask for."""
        self.engine, self.model, self.cfg = engine, model, cfg
        self.metrics = Metrics("none" if engine.drafter is None else kind_name(engine.drafter))
        self.connections = Connections(cfg.max_connections, cfg.read_timeout_s)
        self.worker = Worker(engine, self.metrics, cfg.max_waiting)
        self.reader = ThreadPoolExecutor(1, "drafterforge-reader")  # long prompts should not hold up the streams
        target = engine.target
        dtype = str(target.dtype).removeprefix("torch.")
        self.fingerprint = f"{target.fingerprint[:16]}-{dtype}-{engine.numerics}"

    def start(self) -> None:
        """Begin to decode."""
        self.worker.thread.start()

    def close(self) -> None:
        """End, whatever is under way."""
        self.worker.close(0)
        self.reader.shutdown(wait=False)

    async def respond(self, request: Request, kind: type[AnswerRequest]) -> Response:
        """The answers to a request, whole or as a stream."""
        try:
            return await self._answer(request, kind)
        except asyncio.CancelledError:  # only a server that ends at once cancels a request
            raise shutting_down() from None

    async def _answer(self, request: Request, kind: type[AnswerRequest]) -> Response:
        exchange = Exchange(self.worker, self.cfg.timeout_s)
        body = await exchange.read_body(request, self.cfg.max_body_bytes, self.cfg.read_timeout_s)
        loop = asyncio.get_running_loop()
        asked, wanted = await loop.run_in_executor(self.reader, self._read, kind, body)
        num_prompt_tokens = sum(len(tokens) for tokens, _, _ in wanted[:: asked.n])
        wire = (ChatWire if kind is ChatRequest else CompletionWire)(self.model, self.fingerprint)
        exchange.submit(wanted)
        try:
            if asked.stream:
                first = await while_connected(request, exchange.next())
                with_usage = asked.stream_options.include_usage
                return AnswerStream(exchange, wire, first, num_prompt_tokens, with_usage, self.count)
            choices = await while_connected(request, exchange.finish())
        except BaseException:
            exchange.close()
            raise
        self.count(200)
        return JSONResponse(wire.whole(choices, usage(num_prompt_tokens, choices)))

    def count(self, status: int) -> None:
        """A request has ended."""
        self.metrics.requests.labels(str(status)).inc()

    def _read(self, kind: type[AnswerRequest], body: bytes) -> tuple[AnswerRequest, list[Wanted]]:
        """The request, and the answers it wants, those to one prompt side by side."""
        asked = read_request(kind, body)
        self.require_model(asked.model)
        (field, limit), most = asked.limit, self.cfg.max_new_tokens
        limit = most if limit is None else limit
        if limit > most:
            raise ApiError(400, f"{field}={limit} is more than this server's {most}", param=field)
        prompts = asked.prompts
        if len(prompts) * asked.n > self.cfg.max_choices:
            wanted = f"{len(prompts)} prompts with n={asked.n} make {len(prompts) * asked.n} answers"
            raise ApiError(400, f"{wanted}; a request may ask for {self.cfg.max_choices}", param="n")
        param = "messages" if kind is ChatRequest else "prompt"
        try:
            found = []
            for prompt in prompts:
                tokens = prompt
                for choice in range(asked.n):
                    tokens, rule = self.engine.read(tokens, limit, asked.stop, stream=True)
                    found.append((tokens, rule, asked.sampling(choice)))
        except PromptTooLongError as error:
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from error
        except DrafterforgeError as error:
            raise ApiError(400, str(error), param=param) from error
        return asked, found

    def require_model(self, name: str) -> None:
        """Refuse the name of another model."""
        if name != self.model:
            message = f"no model {name!r}; this server has {self.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
