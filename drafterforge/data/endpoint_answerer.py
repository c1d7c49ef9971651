"""Answers of a target that an OpenAI-compatible server decodes: vLLM, SGLang, `drafterforge serve`.

Prompts are sent to `/v1/completions` as the token ids of our chat template, so the target reads what it reads in this
process, whatever template and tokenizer the server has.  Answers come back as token ids where the server returns them
(`return_token_ids`: vLLM 0.10.2, SGLang since July 2026, `serve`).  Elsewhere the text is tokenized again; an answer is
left out unless its ids decode to that text and are as many as the server has counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Any

from drafterforge.config.data import DataConfig
from drafterforge.data.answering import DATE
from drafterforge.data.chat import answer_ids, prompt_ids
from drafterforge.data.endpoint import Endpoint, IncompleteError
from drafterforge.errors import ServerError, quote

log = logging.getLogger(__name__)

Gaps = Callable[[list[int], int], list[float]]
FINISHED, CUT = "stop", "length"  # finish reasons of complete answers
PLAIN_SAMPLING = {  # servers take other defaults from the model's generation_config.json
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
CHECKED_PROMPTS = (
    "Write a SQL query that counts the users of each country.",
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that reverses a linked list.",
    "A train travels 180 km in 2.5 hours. What is its mean speed?",
)
CHECKED_TOKENS = 32  # of each answer
MIN_AGREEMENT = 0.95  # share of greedy tokens that must be the most probable ones of the local weights
MAX_GAP = 1.0  # of the logits of the local weights' best token and the served one, which dtypes may change
MIN_READABLE = 8  # answers after which a server none of whose texts can be tokenized again is refused


def disagreement(gaps: Sequence[float]) -> str:
    """Why greedy tokens with these gaps come from other weights than the local ones; empty if they do not."""
    agreement = sum(gap == 0 for gap in gaps) / max(len(gaps), 1)
    if not gaps or (agreement >= MIN_AGREEMENT and max(gaps) <= MAX_GAP):
        return ""
    return (
        f"{agreement:.0%} of its greedy tokens are those of the local weights (at least {MIN_AGREEMENT:.0%} if they "
        f"were the same), and logits differ by up to {max(gaps):.2g} (at most {MAX_GAP:g})"
    )


class ServedAnswerer:
    """Asks a server for answers, `data.batch_size` at a time."""

    def __init__(
        self,
        tokenizer: Any,
        data: DataConfig,
        eos_ids: Collection[int],
        progress: Callable[[int, int], None],
        gaps: Gaps | None,
    ) -> None:
        """progress: called with the numbers of new tokens and answers.

        gaps: for each token of a text after a number of prompt tokens, by how much its logit is below the best one;
        None: the target's weights are not here, and `data.served_model` confirms that the server has them.
        """
        self.tokenizer, self.data, self.eos_ids = tokenizer, data, frozenset(eos_ids)
        self.progress, self.gaps = progress, gaps
        self.endpoint = Endpoint(
            data.endpoint_url, concurrency=data.batch_size, timeout_s=data.timeout_s, retries=data.retries
        )
        self.model = ""  # the name under which the target is served, once the server was asked
        self.num_texts = self.num_unreadable = 0  # answers without token ids; those that could not be tokenized again

    def __call__(self, prompts: list[list[int]], max_new_tokens: int, seed: int) -> list[list[int]]:
        """Answers in the order of `prompts`; one that cannot be tokenized again is empty.

        At temperature > 0 each request has a seed of its own, made of `seed` and the number of its prompt.
        """
        return asyncio.run(self._answer(prompts, max_new_tokens, seed))

    async def _answer(self, prompts: list[list[int]], max_new_tokens: int, seed: int) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]

        async def answer(index: int) -> None:
            key = sha256(f"{seed}/{index}".encode()).digest()
            sampling = {"temperature": self.data.temperature}
            if self.data.temperature:
                sampling["seed"] = int.from_bytes(key[:4], "big") >> 1  # some servers read 32 bits
            answers[index] = await self._complete(prompts[index], max_new_tokens, sampling)
            self.progress(len(answers[index]), 1)

        async with self.endpoint:
            if not self.model:
                self.model = await self._find_model()
                await self._check_target()
            failures = self.endpoint.failures
            tasks = [asyncio.ensure_future(answer(index)) for index in range(len(prompts))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            if self.endpoint.failures > failures:
                await self._check_target()  # the server may have been restarted with another model
        if self.num_texts >= MIN_READABLE and self.num_unreadable == self.num_texts:
            raise ServerError(
                f"{self.data.endpoint_url} returns no token ids, and none of its {self.num_texts} texts gives the "
                "tokens that it counted; let a server answer that knows return_token_ids, such as vLLM 0.10.2 or later"
            )
        return answers

    async def _find_model(self) -> str:
        """The name of the served target."""
        url, name = self.data.endpoint_url, self.data.served_model

        def read(response: Any) -> list[str]:
            try:
                return [str(model["id"]) for model in response["data"]]
            except (KeyError, TypeError) as error:
                raise IncompleteError("a list of models without names") from error

        models = await self.endpoint.get("models", read)
        listed = ", ".join(models[:5]) or "no model"
        if name and name not in models:
            raise ServerError(f"{url} serves {listed}, but data.served_model={name}; type data.served_model=NAME")
        if not name and len(models) != 1:
            raise ServerError(f"{url} serves {listed}; type data.served_model=NAME to choose the target")
        if not name and self.gaps is None:
            raise ServerError(
                f"{url} serves {models[0]}, which cannot be compared with the target, whose weights are not here; if "
                f"it is the target, type data.served_model={models[0]}"
            )
        return name or models[0]

    async def _check_target(self) -> None:
        """ServerError if the served model is not the target, by its greedy answers to a few prompts."""
        if self.gaps is None:
            return
        gaps: list[float] = []
        differing: tuple[str, str] | None = None
        for question in CHECKED_PROMPTS:
            prompt = prompt_ids(self.tokenizer, [{"role": "user", "content": question}], date=DATE)
            answer = await self._complete(prompt, CHECKED_TOKENS, {"temperature": 0.0})
            new = self.gaps(prompt + answer, len(prompt)) if answer else []
            if differing is None and max(new, default=0.0) > 0:
                differing = question, self.tokenizer.decode(answer)
            gaps += new
        if not gaps and not self.data.served_model:
            raise ServerError(
                f"{self.data.endpoint_url} serves {self.model}, whose texts do not give tokens to compare; "
                f"if it is the target, type data.served_model={self.model}"
            )
        if reason := disagreement(gaps):
            question, text = differing or ("", "")
            raise ServerError(
                f"{self.data.endpoint_url} serves {self.model}, which is not this target: {reason}; it answers "
                f"{quote(question, 70)} with {quote(text, 70)}; type target= as it is served"
            )

    async def _complete(self, prompt: list[int], max_new_tokens: int, sampling: dict[str, Any]) -> list[int]:
        """The ids of an answer, its end token included; empty if its text cannot be tokenized again."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_new_tokens,
            **PLAIN_SAMPLING,
            **sampling,
            "return_token_ids": True,
        }
        return await self.endpoint.post(
            "completions", body, lambda response: self._read(response, prompt, max_new_tokens)
        )

    def _read(self, response: Any, prompt: list[int], max_new_tokens: int) -> list[int]:
        """The ids in a response to one prompt."""
        try:
            choice = response["choices"][0]
            finish, text = choice["finish_reason"], choice["text"]
            ids, count = choice.get("token_ids"), (response.get("usage") or {}).get("completion_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise IncompleteError("a cut answer (without text or finish_reason)") from error
        if not isinstance(text, str) or not isinstance(ids, list | None):
            raise IncompleteError("a malformed answer (text or token_ids)")
        if finish not in (FINISHED, CUT):
            raise IncompleteError(f"a cut answer (finish_reason {quote(finish, 30)})")
        read = choice.get("prompt_token_ids") or prompt
        if read != prompt:
            raise ServerError(
                f"{self.data.endpoint_url} read {len(read)} prompt tokens instead of the {len(prompt)} that were sent; "
                "let a server answer that takes token ids as they are"
            )
        ends = self._end_tokens(choice) if finish == FINISHED else []
        if ids is None:
            return self._tokenize(prompt, text, ends, count)[:max_new_tokens]
        if ends and count == len(ids) + 1:
            ids = ids + ends  # counted, but not returned
        if not 0 < len(ids) <= max_new_tokens or not all(type(token) is int and token >= 0 for token in ids):
            raise IncompleteError("a malformed answer (token_ids)")
        return ids

    def _end_tokens(self, choice: dict[str, Any]) -> list[int]:
        """The token that ended an answer: the response's if it names one of the target's, else the tokenizer's."""
        for key in ("stop_reason", "matched_stop"):  # vLLM's and SGLang's
            if isinstance(token := choice.get(key), int) and token in self.eos_ids:
                return [token]
        return [end for end in (self.tokenizer.eos_token_id, *sorted(self.eos_ids)) if end in self.eos_ids][:1]

    def _tokenize(self, prompt: list[int], text: str, ends: list[int], count: int | None) -> list[int]:
        """The ids of a text after a prompt; empty unless they decode to the text and are `count`, if that is known.

        Some servers do not count the end token.
        """
        self.num_texts += 1
        for ids in answer_ids(self.tokenizer, prompt, text):
            if count is None or count in (len(ids) + len(ends), len(ids)):
                return ids + ends
        self.num_unreadable += 1
        return []

    def report(self) -> None:
        """Warn of answers that were left out."""
        if self.num_unreadable:
            log.warning(
                "%d of %d answers were left out: the server returns no token ids, and their texts do not give the "
                "tokens that it counted",
                self.num_unreadable,
                self.num_texts,
            )
