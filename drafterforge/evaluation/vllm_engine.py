"""An engine that is a server of vLLM: prompts and answers are token ids, sent over HTTP."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from drafterforge.errors import ServerError, shorten
from drafterforge.evaluation.served_target import ServedTarget
from drafterforge.evaluation.vllm_server import DIRECT, VllmServer
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.runtime.sampling import GREEDY, Sampling

REQUEST_S = 1800.0  # after which a request has failed
STOP_REASONS = {"stop": "eos", "length": "length"}  # vLLM's word -> ours
COUNTER = re.compile(r"^drafterforge_(cycles|accepted_tokens)_total\{(.*)\} (\S+)$", re.MULTILINE)
DRAFTER = re.compile(r'(?:^|,)drafter="([^"]*)"')
Counters = dict[str, dict[str, float]]  # drafter -> {cycles, accepted_tokens}


class VllmEngine:
    """A server of vLLM with the interface of an engine."""

    numerics = "fast"

    def __init__(self, server: VllmServer, target: ServedTarget, drafts: bool) -> None:
        """drafts: whether the server has a drafter, so that its responses must count accepted tokens."""
        self.server, self.target, self.drafts = server, target, drafts

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> list[Generation]:
        """Answers to requests that are sent at the same time."""
        samplings = itertools.repeat(sampling) if isinstance(sampling, Sampling) else sampling
        threads = ThreadPoolExecutor(max(len(prompts), 1))
        try:
            futures = [
                threads.submit(self._answer, list(prompt), max_new_tokens, sampling)
                for prompt, sampling in zip(prompts, samplings, strict=False)
            ]
            return [future.result() for future in futures]
        finally:  # after an error, requests end when the server is stopped
            threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, prompt: list[int], max_new_tokens: int, sampling: Sampling) -> Generation:
        body = {
            "max_tokens": min(max_new_tokens, self.target.max_positions - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed % 2**63,  # vLLM reads signed integers
            "return_token_ids": True,
        }
        began = time.perf_counter()
        response = self.post(prompt, body)
        seconds = time.perf_counter() - began
        choice = response["choices"][0]
        if not isinstance(choice.get("token_ids"), list):
            raise self.server.failure("returns no token_ids; vLLM 0.32 or later does")
        tokens = choice["token_ids"]
        answer = Generation(prompt, tokens, choice.get("text") or "", self._cycles(response, len(tokens)))
        answer.stop_reason = STOP_REASONS.get(choice.get("finish_reason"), "stop")
        answer.time_s["total"] = seconds
        return answer

    def _cycles(self, response: Mapping[str, Any], num_tokens: int) -> list[Cycle]:
        """Cycles of an answer of `num_tokens` tokens."""
        if not self.drafts:
            return cycles_of(num_tokens, [], [])
        counts = (response.get("metrics") or {}).get("speculative_decoding")
        if counts is None:
            raise self.server.failure("counts no accepted tokens of a request; vLLM 0.32 or later does")
        return cycles_of(num_tokens, counts.get("per_step_accepted") or [], counts.get("per_step_drafted") or [])

    def margin(self, text: Sequence[int]) -> float:
        """The target's top-1 minus top-2 logit after a text; the difference of log probabilities is the same."""
        body = {"max_tokens": 1, "temperature": 0.0, "logprobs": 2, "return_tokens_as_token_ids": True}
        response = self.post(list(text), body)
        best = sorted(response["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
        return best[0] - best[1]

    def counters(self) -> Counters:
        """What each drafter of a pool has drafted since the start; empty if the server does not count it."""
        try:
            with DIRECT.open(f"{self.server.url}/metrics", timeout=REQUEST_S) as response:
                return read_counters(response.read().decode(errors="replace"))
        except (OSError, http.client.HTTPException):
            return {}

    def post(self, prompt: list[int], body: Mapping[str, Any]) -> Any:
        """The response to a completion request.

        Its salt is new, so that a prompt that is asked again is read again, which keeps sections comparable.
        """
        content = {"model": self.server.model, "prompt": prompt, "cache_salt": uuid4().hex, **body}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.server.url}/v1/completions", json.dumps(content).encode(), headers)
        try:
            with DIRECT.open(request, timeout=REQUEST_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            message = shorten(message_in(error.read()), 300)
            raise ServerError(
                f"vLLM with {self.server.name} answered {error.code}: {message}; see {self.server.log}"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.server.failure(f"stopped answering ({shorten(error)})") from error


def message_in(body: bytes) -> str:
    """The message of an error response."""
    try:
        content = json.loads(body)
        return str((content.get("error") or content)["message"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return body.decode(errors="replace")


def cycles_of(num_tokens: int, accepted: Sequence[int], drafted: Sequence[int]) -> list[Cycle]:
    """The cycles of an answer, of which the prefill emitted the first token.

    accepted, drafted: tokens of each cycle that verified drafted ones, counted before the answer was cut.  Further
    tokens came from cycles without drafted tokens, which vLLM does not count.
    """
    cycles, left = [], max(num_tokens - 1, 0)
    for count, depth in zip(accepted, drafted, strict=True):
        emitted = min(count + 1, left)
        if emitted:
            cycles.append(Cycle(depth, depth + 1, emitted, accepted=min(count, emitted)))
        left -= emitted
    return cycles + [Cycle(depth=0, num_nodes=1, accept_length=1) for _ in range(left)]


def read_counters(text: str) -> Counters:
    """The counters of a pool's drafters in the text of `/metrics`, summed over other labels."""
    counters: Counters = {}
    for name, labels, value in COUNTER.findall(text):
        if drafter := DRAFTER.search(labels):
            figures = counters.setdefault(drafter[1], {"cycles": 0.0, "accepted_tokens": 0.0})
            figures[name] += float(value)
    return counters
