"""Invalid requests get the right status and the name of the wrong field, and the server goes on."""

from __future__ import annotations

import json
import tracemalloc

import httpx
import openai
import pytest

from drafterforge.runtime.engine import Engine
from drafterforge.server.failures import ApiError
from drafterforge.server.protocol import ChatRequest, read_request
from tests.server.conftest import HTTP, MODEL, serving

pytestmark = pytest.mark.slow  # whole programs

PLAIN = {"model": MODEL, "prompt": "ask", "temperature": 0, "max_tokens": 4}
TURN = {"role": "user", "content": "ask"}


def refusal(response: httpx.Response, status: int, **expected: str | None) -> str:
    """The message of an error in OpenAI's shape."""
    error = response.json()["error"]
    assert response.status_code == status, error
    assert error.keys() == {"message", "type", "param", "code"}
    assert {name: error[name] for name in expected} == expected
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": None}, "prompt", "field required"),
        ({"prompt": []}, "prompt", "expected text, a list of texts, token ids"),
        ({"prompt": {"text": "x"}}, "prompt", "expected text"),
        ({"prompt": ["x", 3]}, "prompt", "expected text"),
        ({"prompt": [1.5]}, "prompt", "expected text"),
        ({"prompt": [True]}, "prompt", "expected text"),
        ({"prompt": ""}, "prompt", "the prompt has 0 tokens; this target reads 1 to 511"),
        ({"prompt": [10**30]}, "prompt", "is not one of this target's"),
        ({"prompt": [-1]}, "prompt", "token id -1 is not one of"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
        ({"max_tokens": "8"}, "max_tokens", 'valid integer, got "8"'),
        ({"max_tokens": 61}, "max_tokens", "limit of 60"),
        ({"max_completion_tokens": 61}, "max_completion_tokens", "limit of 60"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "reasoning_effort is not supported"),
        ({"guided_json": {}}, "guided_json", "guided_json is not supported"),
        ({"regex": "[0-9]+"}, "regex", "regex is not supported"),
        ({"stop_token_ids": [3]}, "stop_token_ids", "stop_token_ids is not supported"),
        ({"ignore_eos": True}, "ignore_eos", "ignore_eos is not supported"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "chat_template_kwargs is not supported"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_k": 1.5}, "top_k", "valid integer"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"seed": 2**64}, "seed", "less than"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 9}, "n", "this server allows 8"),
        ({"prompt": ["x"] * 3, "n": 3}, "n", "3 prompts with n=3 are 9 answers"),
        ({"stop": ["a"] * 5}, "stop", "at most 4 strings"),
        ({"stop": ["a", ""]}, "stop", "1 to 256 characters"),
        ({"stop": 3}, "stop", "a string or a list of strings"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "valid boolean"),
        ({"logprobs": 3}, "logprobs", "logprobs is not supported; leave it out"),
        ({"logprobs": 0}, "logprobs", "logprobs is not supported"),
        ({"echo": True}, "echo", "echo is not supported"),
        ({"best_of": 2}, "best_of", "best_of is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "presence_penalty is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias is not supported"),
        ({"model": 3}, "model", "valid string"),
        ({"model": None}, "model", "field required"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(shared, fields, param, message):
    error = refusal(shared.post(json=PLAIN | fields), 400, param=param)
    assert message in error


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        (None, "messages", "field required"),
        ([], "messages", "at least 1 item"),
        ("ask", "messages", 'valid list, got "ask"'),
        ([{"role": "user"}], "messages.0.content", "field required"),
        ([{"role": "tool", "content": "x"}], "messages.0.role", "'system', 'developer', 'user' or 'assistant'"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            "messages.0.tool_calls",
            "not supported",
        ),
        ([TURN, {"role": "user", "content": 5}], "messages.1.content", "valid list, got 5"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages.0.content.0.type",
            "'text'",
        ),
    ],
    ids=str,
)
def test_a_wrong_message_is_named(shared, messages, param, message):
    error = refusal(shared.post("/v1/chat/completions", json={"model": MODEL, "messages": messages}), 400, param=param)
    assert message in error


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": None, "echo": False, "presence_penalty": 0, "logit_bias": {}, "user": "me", "best_of": 1},
        {"n": None},
        {"stop_token_ids": [], "ignore_eos": False, "length_penalty": 1.0, "min_tokens": 0, "metadata": {"a": "b"}},
    ],
    ids=str,
)
def test_fields_with_neutral_values_are_accepted(shared, fields):
    assert shared.post(json=PLAIN | fields).json()["choices"] == shared.post(json=PLAIN).json()["choices"]


def test_an_answer_may_be_sent_back_unchanged_as_a_message(shared):
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 4}
    answer = shared.client.chat.completions.create(messages=[TURN], **fields).choices[0].message
    more = [TURN, answer.model_dump(), TURN]
    assert shared.post("/v1/chat/completions", json=fields | {"messages": more}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"model": "tiny", "prompt": NaN}',
        b"\xff\xfe\xfa",
        b"[" * 9_000,
        b'{"seed": 1' + b"0" * 9_000 + b"}",
    ],
    ids=lambda body: str(body[:12]),
)
def test_a_body_that_is_no_json_is_refused(shared, body):
    refusal(shared.post(content=body, headers={"Content-Type": "application/json"}), 400, code="malformed_json")


@pytest.mark.parametrize("body", [b"[]", b'"ask"', b"3", b"null"])
def test_a_body_that_is_no_object_is_refused(shared, body):
    assert "must be a JSON object, got" in refusal(shared.post(content=body), 400)


@pytest.mark.parametrize("text", ["\\ud800", "a \\udfff b"])
def test_an_unpaired_surrogate_is_refused(shared, text):
    for body in (PLAIN, PLAIN | {"prompt": ["x", "ask"]}, PLAIN | {"prompt": "x", "stop": "ask"}):
        sent = json.dumps(body).replace("ask", text)
        assert "surrogates" in refusal(shared.post(content=sent), 400, code="malformed_json")
    sent = json.dumps({"model": MODEL, "messages": [TURN]}).replace("ask", text)
    refusal(shared.post("/v1/chat/completions", content=sent), 400, code="malformed_json")


def test_infinity_is_no_temperature(shared):
    body = json.dumps(PLAIN | {"temperature": 7}).replace(" 7", " 1e999")
    refusal(shared.post(content=body), 400, param="temperature")


@pytest.mark.parametrize("digits", [30, 4300])  # Python writes no number of more
@pytest.mark.parametrize(
    "field", ["n", "max_tokens", "max_completion_tokens", "top_k", "seed", "temperature", "prompt", "model"]
)
def test_an_error_quotes_no_long_value(shared, field, digits):
    values = PLAIN | {"prompt": ["a", "b"], "max_tokens": None} | {field: "HUGE"}
    huge = {"prompt": f"[{'9' * digits}]", "model": f'"{"9" * digits}"'}.get(field, "9" * digits)
    body = json.dumps(values).replace('"HUGE"', huge)
    assert len(refusal(shared.post(content=body), 404 if field == "model" else 400, param=field)) < 250


@pytest.mark.parametrize(
    "messages", [[0] * 200_000, [{"role": "user", "content": [0] * 200_000}]], ids=["all", "parts"]
)
def test_many_mistakes_cost_no_more_memory_than_one(messages):
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="input should be a valid dictionary"):
            read_request(ChatRequest, body)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 30 * len(body), f"{most:,} bytes"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [20_001, 200_000, 3_000_000])
def test_a_body_over_the_limit_is_refused_whatever_its_headers_say(shared, chunked, size):
    body = json.dumps(PLAIN | {"user": "x" * size}).encode()
    parts = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
    error = refusal(shared.post(content=parts if chunked else body), 413, code="too_large")
    assert "limit of 20000 bytes" in error
    assert shared.ask().status_code == 200


def test_a_prompt_over_the_context_is_refused_with_openai_s_code(shared):
    with pytest.raises(openai.BadRequestError) as caught:
        shared.client.completions.create(model=MODEL, prompt="x" * 512)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="this target reads 1 to 511") as caught:
        shared.client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 600}])
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"


def test_an_unknown_model_is_refused(shared):
    for ask in (
        lambda: shared.client.completions.create(model="gpt-4", prompt="x"),
        lambda: shared.client.models.retrieve("a/b"),
    ):
        with pytest.raises(openai.NotFoundError, match="this server has 'tiny'") as caught:
            ask()
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/docs", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)],
)
def test_unknown_paths_and_methods_are_errors_of_the_same_shape(shared, method, path, status):
    message = refusal(HTTP.request(method, shared.url + path), status)
    assert ("/v1/models, /metrics and /health" in message) == (status == 404)


def test_a_web_page_of_another_host_is_not_answered(shared):
    refusal(shared.post(json=PLAIN, headers={"Origin": "https://evil.example"}), 403, code="forbidden_origin")
    for origin in ("null", "http://[::1", "http://", ""):
        refusal(shared.post(json=PLAIN, headers={"Origin": origin}), 403, code="forbidden_origin")
    assert shared.post(json=PLAIN, headers={"Origin": shared.url}).status_code == 200


def test_without_the_key_only_health_answers(speaking):
    with serving(Engine(speaking), api_key="sesame") as up:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "sesame"},
            {"Authorization": "Basic sesame"},
        ):
            refusal(up.post(json=PLAIN, headers=headers), 401, code="invalid_api_key")
        for path in ("/v1/models", "/metrics"):
            refusal(HTTP.get(up.url + path), 401)
        assert HTTP.get(f"{up.url}/health").json() == {"status": "ok"}
        with pytest.raises(openai.AuthenticationError):
            up.client.models.list()
        right = up.client.with_options(api_key="sesame")
        assert right.models.list().data[0].id == MODEL
        assert right.completions.create(**PLAIN).usage.completion_tokens == 4
        assert "sesame" not in repr(up.service.cfg)
