"""Answer a request: read its body, queue its answers at the worker, and return or stream them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from drafterforge.artifacts.learned import delete_texts
from drafterforge.assembly.runs import RunsFolder, is_generalist
from drafterforge.config.hints import flags_for
from drafterforge.config.progress import say
from drafterforge.config.serving import ServeConfig
from drafterforge.errors import DrafterforgeError, PromptTooLongError, quote
from drafterforge.runtime.answer_log import AnswerLog
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Row
from drafterforge.server.connections import Connections
from drafterforge.server.exchange import AnswerSpec, Exchange, while_connected
from drafterforge.server.failures import ApiError, queue_full, shutting_down
from drafterforge.server.learning import LearnedDrafters, LearnerProcess, Learning, learn_command
from drafterforge.server.metrics import Metrics
from drafterforge.server.protocol import AnswerRequest, ChatRequest, read_request
from drafterforge.server.streaming import AnswerStream
from drafterforge.server.traffic import TrafficRecorder
from drafterforge.server.wire import ChatWire, CompletionWire, usage
from drafterforge.server.worker import Worker

LONG_BODY = 256 << 10  # bytes of a request; shorter ones are tokenized in milliseconds
NO_LEARN = "x-no-learn"  # header of requests whose answers are not recorded


class Service:
    """An engine that answers HTTP requests."""

    def __init__(self, engine: Engine, model: str, cfg: ServeConfig) -> None:
        """model: the name under which clients request it."""
        self.engine, self.model, self.cfg = engine, model, cfg
        self.metrics = Metrics("none" if engine.drafter is None else kind_name(engine.drafter))
        self.connections = Connections(cfg.max_connections, cfg.read_timeout_s)
        self.traffic = self._open_traffic() if cfg.learn.record else None
        self.learning = self._open_learning() if cfg.learn.record else None
        if cfg.learn.record:
            self.metrics.watch_learning(lambda: "failed" not in self._learning_states().values())
        self.worker = Worker(engine, self.metrics, cfg.max_waiting)
        # so that tokenizing does not delay the streams, and that of long prompts not that of short ones
        self.readers = [ThreadPoolExecutor(1, "drafterforge-reader") for _ in ("short", "long")]
        self.num_reading = [0, 0]  # bodies that each reader has or that wait for it
        target = engine.target
        dtype = str(target.dtype).removeprefix("torch.")
        self.fingerprint = f"{target.fingerprint[:16]}-{dtype}-{engine.numerics}"

    def _open_traffic(self) -> TrafficRecorder:
        learn, target = self.cfg.learn, self.engine.target
        answers = AnswerLog(learn, learn.traffic_dir(self.cfg.runs_dir, target.name), target)
        remembers = answers.memory is None or self.engine.use_memory(answers.memory)
        reasons = {
            "no expert is trained, because only pools take experts": learn.train and not self.has_pool,
            "no answer is looked up, because no drafter retrieves": not remembers,
        }
        if stated := [reason for reason, holds in reasons.items() if holds]:
            say(f"learn=on records answers, but {', and '.join(stated)}; drafter=pool does both")
        return TrafficRecorder(learn, answers, self.metrics)

    @property
    def has_pool(self) -> bool:
        """Whether learned experts can join the engine's drafters."""
        return isinstance(self.engine.drafter, Pool)

    def _open_learning(self) -> Learning | None:
        """What trains experts and lets them join and leave; None if the engine has no pool that they could join."""
        target, runs_dir, folder = self.engine.target, self.cfg.runs_dir, self.traffic.answers.writer.folder
        clear = partial(delete_texts, folder, runs_dir, target.name)
        clear()  # of a server that was killed
        if not self.has_pool:
            return None
        command = learn_command(self.cfg.learn, target.settings, runs_dir, folder)
        process = LearnerProcess(command, folder) if self.cfg.learn.train else None
        runs = RunsFolder(runs_dir, target, quiet=True)
        if self.cfg.learn.train and not any(is_generalist(runs.find(name)) for name in runs.names()):
            typed = f"drafterforge train-drafter domain=general{flags_for(target.settings, runs_dir)}"
            say(f"learn=on trains no expert until {runs_dir} has a generalist, to which experts add; type `{typed}`")
        drafters = LearnedDrafters(self.engine, runs, folder)
        return Learning(drafters, process, clear)

    def start(self) -> None:
        self.worker.thread.start()
        if self.learning is not None:
            self.learning.start(self.worker.between_cycles)

    def close(self) -> None:
        """Stop at once; running answers fail."""
        self.worker.close(0)
        for reader in self.readers:
            reader.shutdown(wait=False)
        if self.learning is not None:
            self.learning.close()
        if self.traffic is not None:
            self.traffic.close()

    @property
    def health(self) -> tuple[int, dict[str, str]]:
        """The status and content of `/health`; learning that has failed does not make the server unhealthy."""
        state = self.worker.state
        return 200 if state == "ok" else 503, {"status": state} | self._learning_states()

    def _learning_states(self) -> dict[str, str]:
        """running | failed, of recording and of learning where they are on."""
        parts = {"recording": self.traffic, "learning": self.learning if self.cfg.learn.train else None}
        return {name: part.state for name, part in parts.items() if part is not None}

    async def respond(self, request: Request, kind: type[AnswerRequest]) -> Response:
        """The response to a request, complete or as a stream."""
        try:
            return await self._answer(request, kind)
        except asyncio.CancelledError:  # requests are cancelled only when the server stops at once
            raise shutting_down() from None

    async def _answer(self, request: Request, kind: type[AnswerRequest]) -> Response:
        exchange = Exchange(self.worker, self.cfg.timeout_s)
        body = await exchange.read_body(request, self.cfg.max_body_bytes, self.cfg.read_timeout_s)
        fields, specs = await self._read_in_thread(kind, body)
        num_prompt_tokens = sum(len(tokens) for tokens, _, _ in specs[:: fields.n])
        wire = (ChatWire if kind is ChatRequest else CompletionWire)(self.model, self.fingerprint)
        exchange.submit(specs, self._recording(request, len(specs)))
        try:
            if fields.stream:
                first = await while_connected(request, exchange.next())
                with_usage = fields.stream_options.include_usage
                return AnswerStream(exchange, wire, first, num_prompt_tokens, with_usage, self.count)
            choices = await while_connected(request, exchange.finish())
        except BaseException:
            exchange.close()
            raise
        self.count(200)
        prompts = [tokens for tokens, _, _ in specs] if fields.return_token_ids else []
        return JSONResponse(wire.response(choices, usage(num_prompt_tokens, choices), prompts))

    async def _read_in_thread(self, kind: type[AnswerRequest], body: bytes) -> tuple[AnswerRequest, list[AnswerSpec]]:
        """As `_read`; ApiError if too many bodies wait for it, also those of clients that have hung up since."""
        is_long = len(body) > LONG_BODY
        if self.num_reading[is_long] >= self.worker.capacity:
            raise queue_full(self.num_reading[is_long])
        self.num_reading[is_long] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers[is_long], self._read, kind, body)
        finally:
            self.num_reading[is_long] -= 1

    def _recording(self, request: Request, count: int) -> Callable[[Row], None] | None:
        """What records the answers of a request; None: they are not recorded.  count: of the answers."""
        if self.traffic is None:
            return None
        client = request.client.host if request.client else ""
        opted_out = request.headers.get(NO_LEARN, "0") != "0"
        if not self.traffic.admits(client, opted_out, count):
            return None
        return partial(self.traffic.record, client, self.traffic.answers.num_erasures)

    def count(self, status: int) -> None:
        """Count an ended request in the metrics."""
        self.metrics.requests.labels(str(status)).inc()

    def _read(self, kind: type[AnswerRequest], body: bytes) -> tuple[AnswerRequest, list[AnswerSpec]]:
        """The checked request, and the specifications of its answers, `n` per prompt in the order of the prompts."""
        fields = read_request(kind, body)
        self.require_model(fields.model)
        if fields.stream and fields.return_token_ids:
            message = "return_token_ids is not supported with stream=true; leave one of them out"
            raise ApiError(400, message, param="return_token_ids")
        (field, limit), max_tokens = fields.limit, self.cfg.max_new_tokens
        limit = max_tokens if limit is None else limit
        if limit > max_tokens:
            raise ApiError(400, f"{field}={limit} is larger than this server's limit of {max_tokens}", param=field)
        prompts = fields.prompts
        num_answers = len(prompts) * fields.n
        if num_answers > self.cfg.max_choices:
            message = (
                f"{len(prompts)} prompts with n={fields.n} are {num_answers} answers; this server allows "
                f"{self.cfg.max_choices} answers per request"
            )
            raise ApiError(400, message, param="n")
        param = "messages" if kind is ChatRequest else "prompt"
        try:
            specs = []
            for prompt in prompts:
                tokens = prompt
                for choice in range(fields.n):
                    tokens, rule = self.engine.read(tokens, limit, fields.stop, stream=True)
                    specs.append((tokens, rule, fields.sampling(choice)))
        except PromptTooLongError as error:
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from error
        except DrafterforgeError as error:
            raise ApiError(400, str(error), param=param) from error
        return fields, specs

    def require_model(self, name: str) -> None:
        """ApiError if `name` is not the served model."""
        if name != self.model:
            message = f"there is no model {quote(name)}; this server has {self.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
