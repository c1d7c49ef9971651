"""A server answers for the target: every answer once, whatever the server does, and only if it serves the target."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from types import SimpleNamespace

import pytest

from drafterforge.artifacts.staging import drop_staging
from drafterforge.config.data import DataConfig
from drafterforge.data import endpoint
from drafterforge.data.answering import prepare_answers
from drafterforge.data.answers import SPLITS, AnswerSet
from drafterforge.data.endpoint_answerer import CHECKED_PROMPTS, ServedAnswerer
from drafterforge.errors import ConfigError, ServerError
from tests.data.completions import Completions, serving
from tests.data.test_answers import EOS, Echo, Killed, content, prompts_of
from tests.tiny import TINY

FAULTS = ("429", "500", "502", "503", "504", "reset", "cut", "not JSON", "no choices", "unfinished", "aborted", "hang")
COUNTS = {"train": 34, "val": 3, "test": 2}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits between attempts are a hundredth of the real ones."""
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.01)


def reply_of(echo: Echo, with_ids: bool = True):
    """Answers of `echo`, as vLLM gives them."""

    def reply(request):
        prompt, limit = request["prompt"], request["max_tokens"]
        ids = echo.answer(prompt, limit, request.get("seed", 0))
        finish = "stop" if ids[-1] == echo.eos else "length"
        text = "".join(chr(97 + echo.letters.index(token)) for token in ids if token != echo.eos)
        choice = {"text": text, "finish_reason": finish, "count": len(ids)}
        return choice | ({"token_ids": ids, "prompt_token_ids": prompt} if with_ids else {})

    return reply


def no_gaps(ids: list[int], prompt_tokens: int) -> list[float]:
    """A target that would have answered the same."""
    return [0.0] * (len(ids) - prompt_tokens)


@pytest.fixture
def prepare(chatml, tmp_path):
    """Prepares answers of a server, or of `generate`."""

    def run(server: Completions | None, name="sql", generate=None, gaps=no_gaps, prompts=None, **options) -> AnswerSet:
        served = {"answers": "served", "endpoint": server.url} if server else {}
        data = DataConfig(**{"shard_size": 8, "max_new_tokens": 9, "batch_size": 6, **served, **options})
        eos = {chatml.convert_tokens_to_ids(EOS)}
        answerer = generate or ServedAnswerer(chatml, data, eos, lambda tokens, answers: None, gaps)
        return prepare_answers(
            prompts or prompts_of(COUNTS),
            tokenizer=chatml,
            generate=answerer,
            data=data,
            path=tmp_path / name,
            target=TINY,
            config={},
            seed=0,
            eos_ids=eos,
        )

    yield run
    for folder in tmp_path.glob(".*.partial"):
        drop_staging(folder.with_name(folder.name.removeprefix(".").removesuffix(".partial")))


def in_process(echo: Echo):
    """The same answers without a server: greedy ones, whose seed is 0."""
    return lambda prompts, limit, _: [echo.answer(prompt, limit, 0) for prompt in prompts]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("turns", [1, 2])
def test_a_server_that_fails_at_random_loses_and_doubles_no_answer(chatml, prepare, turns):
    echo, prompts = Echo(chatml), prompts_of(COUNTS, turns)
    expected = prepare(None, "expected", in_process(echo), prompts=prompts)
    state = Completions(reply_of(echo), faults=FAULTS, fault_rate=0.4, seed=turns, hang_s=0.4)
    with serving(state) as server:
        answers = prepare(server, "served", prompts=prompts, timeout_s=0.2, retries=30)
    arrows = [name for name in content(expected) if name.endswith(".arrow")]
    assert {name: content(answers)[name] for name in arrows} == {name: content(expected)[name] for name in arrows}
    assert sum(len(answers.rows(split)) for split in SPLITS) == sum(COUNTS.values())
    assert state.most_in_flight <= 6 + state.hits["hang"]  # a client that gave up does not stop the server
    assert all(state.hits[fault] for fault in ("429", "500", "cut", "hang", "reset"))


def test_requests_are_concurrent_plain_and_answered_once_each(chatml, prepare):
    with serving(Completions(reply_of(Echo(chatml)))) as server:
        prepare(server, timeout_s=5)
    checked, sent = server.requests[: len(CHECKED_PROMPTS)], server.requests[len(CHECKED_PROMPTS) :]
    assert Counter(len(request["prompt"]) > 0 for request in checked) == {True: len(CHECKED_PROMPTS)}
    assert len({json.dumps(request["prompt"]) for request in sent}) == len(sent) == sum(COUNTS.values())
    assert 1 < server.most_in_flight <= 6
    for request in sent:
        assert request["temperature"] == 0.0 and request["top_p"] == 1.0 and request["repetition_penalty"] == 1.0
        assert request["model"] == "tiny" and request["return_token_ids"] is True and "seed" not in request


def test_temperature_and_a_seed_for_each_request_are_sent(chatml, prepare):
    with serving(Completions(reply_of(Echo(chatml)))) as server:
        first = prepare(server, "first", temperature=0.7)
        seeds = {request["seed"] for request in server.requests if request["temperature"] == 0.7}
        assert len(seeds) == sum(COUNTS.values()) and all(0 <= seed < 2**31 for seed in seeds)
        again = prepare(server, "again", temperature=0.7)
    assert first.manifest.files["train-00000.arrow"] == again.manifest.files["train-00000.arrow"]


def test_a_killed_run_asks_only_for_the_shards_that_are_missing(chatml, prepare):
    echo = Echo(chatml)
    expected = prepare(None, "expected", in_process(echo))
    killed = Echo(chatml, kill_after=4)
    killed.answer = lambda prompt, limit, seed: Echo.answer(killed, prompt, limit, 0)
    with pytest.raises(Killed):
        prepare(None, "sql", killed, answers="served", endpoint="http://127.0.0.1:9/v1")
    with serving(Completions(reply_of(echo))) as server:
        answers = prepare(server, "sql")
    assert len(server.requests) == len(CHECKED_PROMPTS) + sum(COUNTS.values()) - 4 * 8
    assert answers.manifest.files["train-00000.arrow"] == expected.manifest.files["train-00000.arrow"]


def test_texts_without_token_ids_are_tokenized_again(chatml, prepare):
    echo = Echo(chatml)
    expected = prepare(None, "expected", in_process(echo))
    with serving(Completions(reply_of(echo, with_ids=False))) as server:
        answers = prepare(server)
    assert answers.manifest.files["train-00000.arrow"] == expected.manifest.files["train-00000.arrow"]


def test_texts_that_do_not_give_their_tokens_back_are_left_out(chatml, prepare, caplog):
    """The server counts one token where '\\n\\n' was emitted as two, and cuts another answer inside a character."""
    echo = Echo(chatml)

    def reply(request):
        choice = reply_of(echo, with_ids=False)(request)
        number = sum(request["prompt"])
        if number % 3 == 0:
            choice |= {"text": "a\n\nb", "finish_reason": "stop", "count": 5}
        elif number % 3 == 1:
            choice |= {"text": "a\ufffd", "finish_reason": "length", "count": 4}
        return choice

    with serving(Completions(reply)) as server:
        answers = prepare(server)
    left = sum(sum(request["prompt"]) % 3 < 2 for request in server.requests[len(CHECKED_PROMPTS) :])
    assert 0 < left < sum(COUNTS.values())
    assert sum(len(answers.rows(split)) for split in SPLITS) == sum(COUNTS.values()) - left
    assert not any(chatml.decode(row.input_ids).count("a\n\nb") for row in answers.rows())


def test_a_server_none_of_whose_texts_can_be_tokenized_again_is_refused(chatml, prepare):
    def reply(request):
        return {"text": "ab", "finish_reason": "stop", "count": 17}

    with serving(Completions(reply)) as server:
        with pytest.raises(ServerError, match=r"do not give tokens to compare; .* type data\.served_model=tiny"):
            prepare(server)
        with pytest.raises(ServerError, match="returns no token ids, and none of"):
            prepare(server, served_model="tiny")


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": "abc"},
        {"token_ids": []},
        {"token_ids": [1.5]},
        {"token_ids": [-1]},
        {"token_ids": [1] * 99},
        {"text": None},
        {"finish_reason": ["stop"]},
    ],
)
def test_malformed_answers_are_never_stored(chatml, prepare, fields):
    def reply(request):
        return reply_of(Echo(chatml))(request) | fields

    with (
        serving(Completions(reply)) as server,
        pytest.raises(ServerError, match=r"failed 2 times in a row: a \w+ answer"),
    ):
        prepare(server, retries=1)


def test_the_end_token_is_the_one_that_the_server_names(chatml, prepare):
    """Token ids without the end token, which the server counted, end with it."""
    echo = Echo(chatml)
    expected = prepare(None, "expected", in_process(echo))

    def reply(request):
        choice = reply_of(echo)(request)
        if choice["finish_reason"] == "stop":
            choice |= {"token_ids": choice["token_ids"][:-1], "matched_stop": echo.eos}
        return choice

    with serving(Completions(reply)) as server:
        answers = prepare(server)
    assert answers.manifest.files["train-00000.arrow"] == expected.manifest.files["train-00000.arrow"]


def test_a_changed_prompt_is_refused(chatml, prepare):
    def reply(request):
        return reply_of(Echo(chatml))(request) | {"prompt_token_ids": [1, *request["prompt"]]}

    with serving(Completions(reply)) as server, pytest.raises(ServerError, match=r"read \d+ prompt tokens instead of"):
        prepare(server)


def test_another_model_is_refused_before_any_answer_and_after_a_restart(chatml, prepare, tmp_path):
    def foreign(ids, prompt_tokens):
        return [0.0, 3.0] * ((len(ids) - prompt_tokens) // 2) + [0.0]

    with serving(Completions(reply_of(Echo(chatml)))) as server:
        with pytest.raises(ServerError, match="serves tiny, which is not this target") as refused:
            prepare(server, gaps=foreign)
        assert len(server.requests) == len(CHECKED_PROMPTS) and "\n" not in str(refused.value)

        calls = []

        def changed_later(ids, prompt_tokens):
            calls.append(ids)
            return no_gaps(ids, prompt_tokens) if len(calls) <= len(CHECKED_PROMPTS) else foreign(ids, prompt_tokens)

        server.faults, server.fault_rate = ("503",), 0.3
        with pytest.raises(ServerError, match="is not this target"):
            prepare(server, "restarted", gaps=changed_later, retries=30)
        assert not list(tmp_path.glob(".restarted.partial/*.arrow"))  # no shard was written


def test_the_served_model_is_typed_where_it_cannot_be_compared(chatml, prepare):
    with serving(Completions(reply_of(Echo(chatml)))) as server:
        with pytest.raises(ServerError, match=r"type data\.served_model=tiny"):
            prepare(server, gaps=None)
        assert len(prepare(server, gaps=None, served_model="tiny").rows()) == COUNTS["train"]
        assert len(server.requests) == sum(COUNTS.values())
        with pytest.raises(ServerError, match=r"serves tiny, but data\.served_model=large"):
            prepare(server, "large", served_model="large")
        server.models = ("tiny", "adapter")
        with pytest.raises(ServerError, match=r"serves tiny, adapter; type data\.served_model=NAME"):
            prepare(server, "several")


@pytest.mark.parametrize(
    "fault, message",
    [
        ("400", r"refused a request: status 400 \(fault 400\)"),
        ("401", r"refused the key: status 401 \(fault 401\); set DRAFTERFORGE_API_KEY=KEY in the environment"),
        ("429", r"failed 3 times in a row: status 429 \(fault 429\); finished shards are kept"),
        ("hang", r"failed 3 times in a row: no answer within 0\.1 s \(data\.timeout_s\)"),
        ("cut", "failed 3 times in a row: a cut answer"),
    ],
)
def test_a_server_that_keeps_failing_ends_the_run_in_one_line(chatml, prepare, fault, message):
    state = Completions(reply_of(Echo(chatml)), faults=(fault,), fault_rate=1.0, hang_s=0.3)
    with serving(state) as server, pytest.raises(ServerError, match=message) as failed:
        prepare(server, retries=2, timeout_s=0.1)
    assert "\n" not in str(failed.value) and not server.requests[len(CHECKED_PROMPTS) :]


def test_a_missing_server_is_not_waited_for(prepare):
    with pytest.raises(ServerError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        prepare(Completions(None, url="http://127.0.0.1:9"), retries=1000)


def test_the_key_is_sent_and_never_shown(chatml, prepare, monkeypatch, caplog):
    monkeypatch.setenv("DRAFTERFORGE_API_KEY", "sesame")
    caplog.set_level(logging.DEBUG)
    with serving(Completions(reply_of(Echo(chatml)), faults=("500",), fault_rate=0.2)) as server:
        answers = prepare(server)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sesame"}
    assert "sesame" not in caplog.text
    assert not any(b"sesame" in path.read_bytes() for path in answers.path.iterdir())


def test_a_server_says_when_to_come_back(chatml, prepare, monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(endpoint, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 1.0)
    client = endpoint.Endpoint("http://127.0.0.1:9/v1", concurrency=1, timeout_s=1, retries=8)
    limits = [min(2.0**attempt, 60.0) for attempt in range(9)]
    for attempt, limit in enumerate(limits):
        samples = {client._wait_s(attempt) for _ in range(50)}
        assert len(samples) == 50 and limit / 2 <= min(samples) and max(samples) <= limit
    with serving(Completions(reply_of(Echo(chatml)), faults=("429",), fault_rate=0.3)) as server:
        monkeypatch.setattr(endpoint, "_retry_after_s", lambda response: 7.0)
        prepare(server)
    assert waits and min(waits) >= 7.0


def test_retry_after_is_a_number_or_a_date():
    def seconds(value):
        return endpoint._retry_after_s(endpoint.httpx2.Response(429, headers={"Retry-After": value}))

    assert seconds("2") == 2.0 and seconds("") == seconds("soon") == seconds("-1") == seconds("nan") == 0.0
    assert seconds("1e9") == endpoint.LONGEST_RETRY_AFTER_S
    assert seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert seconds("Fri, 31 Dec 9999 23:59:59 GMT") == endpoint.LONGEST_RETRY_AFTER_S


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"answers": "served"}, "needs a server: type data.endpoint="),
        ({"answers": "served", "endpoint": "localhost:8000"}, "is no address"),
        ({"answers": "served", "endpoint": "http://me:sesame@host/v1"}, "must not hold a password"),
        ({"endpoint": "http://host/v1"}, "is read by data.answers=served only"),
        ({"served_model": "m"}, "is read by data.answers=served only"),
    ],
)
def test_contradicting_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message) as refused:
        DataConfig(**settings)
    assert "sesame" not in str(refused.value)


def test_v1_need_not_be_typed():
    for typed in ("http://host:8000", "http://host:8000/", "http://host:8000/v1", "http://host:8000/v1/"):
        assert DataConfig(answers="served", endpoint=typed).endpoint_url == "http://host:8000/v1"
