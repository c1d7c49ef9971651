"""OpenAI's client receives the engine's answers: complete, streamed, cut, sampled and many at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY, Sampling
from tests.server.conftest import MODEL, SHAPE, pool_of, serving, speaking_target

pytestmark = pytest.mark.slow  # whole programs

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which query counts users?"}]
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "seed": 5}


def chat(up, **fields):
    return up.client.chat.completions.create(**{"model": MODEL, "messages": CHAT, "max_tokens": 16, **fields})


def complete(up, **fields):
    return up.client.completions.create(**{"model": MODEL, "prompt": "count", "max_tokens": 16, **fields})


def streamed(chunks) -> dict[int, dict]:
    """Text, finish reason and number of pieces of every choice."""
    choices: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            state = choices.setdefault(choice.index, {"text": "", "finish": None, "pieces": 0})
            piece = choice.delta.content if hasattr(choice, "delta") else choice.text
            assert state["finish"] is None  # nothing after the end
            state["text"] += piece or ""
            state["pieces"] += bool(piece)
            state["finish"] = choice.finish_reason
    return choices


def test_models_are_listed_and_found_by_name(shared):
    client = shared.client
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_answer_equals_the_engine_s(shared, speaking):
    answer = chat(shared, temperature=0)
    expected = Engine(speaking).generate([CHAT], 16, stop=["\x00never"])[0]
    assert answer.choices[0].message.content == expected.text and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length" and answer.object == "chat.completion"
    used = answer.usage
    assert (used.prompt_tokens, used.completion_tokens) == (len(expected.prompt), 16)
    assert used.total_tokens == used.prompt_tokens + used.completion_tokens
    assert answer.system_fingerprint.endswith("float32-fast")


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, SAMPLED, {"seed": 6}, {"seed": 7, "stop": ["e", "\ufffd\ufffd"]}]
)
def test_the_pieces_of_a_stream_join_to_the_full_answer(shared, ask, sampling):
    full = ask(shared, **sampling).choices[0]
    text = full.message.content if ask is chat else full.text
    choices = streamed(ask(shared, stream=True, **sampling))
    assert choices == {0: {"text": text, "finish": full.finish_reason, "pieces": choices[0]["pieces"]}}
    assert choices[0]["pieces"] > 1 or "stop" in sampling


def test_a_stream_ends_with_the_usage_if_requested(shared):
    full = chat(shared, **SAMPLED)
    chunks = list(chat(shared, stream=True, stream_options={"include_usage": True}, **SAMPLED))
    assert chunks[-1].usage == full.usage and chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_token_ids_are_returned_on_demand(shared, speaking, path):
    prompt = {"prompt": [40, 41, 42]} if path == "/v1/completions" else {"messages": CHAT}
    fields = {"model": MODEL, "temperature": 0, "max_tokens": 16, **prompt}
    expected = Engine(speaking).generate([prompt.get("prompt", CHAT)], 16)[0]
    choice = shared.post(path, json=fields | {"return_token_ids": True}).json()["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (expected.tokens, expected.prompt)
    assert not {"token_ids", "prompt_token_ids"} & shared.post(path, json=fields).json()["choices"][0].keys()
    refused = shared.post(path, json=fields | {"return_token_ids": True, "stream": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "return_token_ids"


def test_a_stop_string_ends_the_answer_and_is_never_sent(shared):
    full = complete(shared, temperature=0, max_tokens=30).choices[0].text
    stop = next(text for text in re.findall(r"[ -~]{2,3}", full[3:]))
    for more in ({}, {"stream": True}):
        answer = complete(shared, temperature=0, max_tokens=30, stop=[stop, "never to be found"], **more)
        result = (
            streamed(answer)[0] if more else {"text": answer.choices[0].text, "finish": answer.choices[0].finish_reason}
        )
        assert result["text"] == full[: full.index(stop)] and result["finish"] == "stop"
    assert complete(shared, temperature=0, max_tokens=30, stop=stop).usage.completion_tokens < 30


def test_an_answer_with_an_end_token_says_stop_and_counts_that_token():
    plain = Engine(speaking_target()).generate(["count"], 20)[0]
    end = plain.tokens[12]
    ended = speaking_target(eos_token_id=end)
    with serving(Engine(ended)) as up:
        answer = complete(up, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == plain.tokens.index(end) + 1


def test_the_same_seed_gives_the_same_text_and_another_seed_another(shared):
    first, again, other_seed = (chat(shared, seed=seed).choices[0].message.content for seed in (3, 3, 4))
    assert first == again != other_seed
    assert len({chat(shared).choices[0].message.content for _ in range(2)}) == 2  # without a seed the server draws one
    assert chat(shared, seed=-1).choices[0].message.content == chat(shared, seed=2**64 - 1).choices[0].message.content


def test_max_tokens_cuts_a_longer_answer(shared):
    answers = [complete(shared, temperature=0, max_tokens=count) for count in (1, 6, 16)]
    assert [answer.usage.completion_tokens for answer in answers] == [1, 6, 16]
    assert {answer.choices[0].finish_reason for answer in answers} == {"length"}
    short, middle, long = (answer.choices[0].text for answer in answers)
    assert len(short) < len(middle) < len(long) and up_to(short, middle) and up_to(middle, long)
    assert (
        chat(shared, max_completion_tokens=2, max_tokens=50).usage.completion_tokens == 2
    )  # the newer name takes precedence
    assert complete(shared, temperature=0, max_tokens=None).usage.completion_tokens == 60  # the server's limit


def up_to(short: str, long: str) -> bool:
    """Whether `short` is a prefix of `long`, apart from a cut character."""
    return long.startswith(short.rstrip("\ufffd"))


def test_an_answer_at_the_end_of_the_context_says_length(speaking):
    with serving(Engine(speaking), max_new_tokens=500) as up:
        answer = complete(up, prompt="x" * 500, temperature=0, max_tokens=400)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (12, "length")


def test_n_answers_have_consecutive_seeds(shared):
    answers = complete(shared, prompt=["one", "two"], n=2, seed=8, max_tokens=9)
    alone = [complete(shared, prompt=prompt, seed=seed, max_tokens=9) for prompt in ("one", "two") for seed in (8, 9)]
    assert [choice.text for choice in answers.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in answers.choices] == [0, 1, 2, 3]
    assert answers.usage.prompt_tokens == 6
    assert answers.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone)
    choices = streamed(complete(shared, prompt=["one", "two"], n=2, seed=8, max_tokens=9, stream=True))
    assert [choices[index]["text"] for index in range(4)] == [answer.choices[0].text for answer in alone]


def test_prompts_may_be_token_ids(shared, speaking):
    ids = [speaking.tokenizer(prompt).input_ids for prompt in ("one", "two")]
    expected = [choice.text for choice in complete(shared, prompt=["one", "two"], temperature=0).choices]
    assert [choice.text for choice in complete(shared, prompt=ids, temperature=0).choices] == expected
    assert complete(shared, prompt=ids[0], temperature=0).choices[0].text == expected[0]


def test_a_message_may_be_parts_of_text(shared):
    parts = [{"type": "text", "text": "Which query "}, {"type": "text", "text": "counts users?"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert chat(shared, messages=messages, **SAMPLED).choices[0] == chat(shared, **SAMPLED).choices[0]


def test_more_sampling_comes_in_the_extra_body(shared, speaking):
    greedy = complete(shared, temperature=0).choices[0].text
    assert complete(shared, seed=1, extra_body={"top_k": 1}).choices[0].text == greedy
    assert complete(shared, seed=1, extra_body={"top_k": -1, "unheard_of": 3}).choices[0].text != greedy
    sampling = Sampling(temperature=0.7, min_p=0.02, repetition_penalty=1.3, seed=4)
    expected = Engine(speaking).generate(["count"], 16, sampling, stop=["\x00never"])[0].text
    extra = {"min_p": 0.02, "repetition_penalty": 1.3}
    assert complete(shared, temperature=0.7, seed=4, extra_body=extra).choices[0].text == expected


# Many at once.

PROMPTS = [f"{'long ' * (number % 5)}request {number}" for number in range(32)]
KINDS = {
    "float32, a pool": (torch.float32, pool_of, {"numerics": "fast"}),
    "bfloat16, a pool": (torch.bfloat16, pool_of, {"numerics": "invariant"}),
    "bfloat16, alone": (torch.bfloat16, lambda target: None, {"numerics": "invariant"}),
    "fixed shapes": (torch.float32, lambda target: pool_of(target).drafters["one"], {"graphs": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_32_concurrent_requests_get_the_answers_of_single_ones(kind):
    dtype, drafter, options = KINDS[kind]
    target = speaking_target(dtype)
    samplings = [GREEDY if number % 2 else Sampling(temperature=1.0, seed=number) for number in range(32)]
    alone = Engine(target, numerics=options.get("numerics", "fast"))
    expected = [
        alone.generate([prompt], 6 + number % 5, samplings[number], stop=["\x00never"])[0].text
        for number, prompt in enumerate(PROMPTS)
    ]
    with serving(Engine(target, drafter(target), SHAPE, **options)) as up:
        client = up.client

        def ask(number: int) -> str:
            sampling = samplings[number]
            fields = {"model": MODEL, "prompt": PROMPTS[number], "max_tokens": 6 + number % 5}
            fields |= {"temperature": sampling.temperature, "seed": sampling.seed}
            if number % 3:
                return client.completions.create(**fields).choices[0].text
            return streamed(client.completions.create(stream=True, **fields))[0]["text"]

        with ThreadPoolExecutor(32) as pool:
            texts = list(pool.map(ask, range(32)))
        assert texts == expected
        assert up.figure("step_seconds_count", step="verify") < up.figure("cycles_total") / 2  # they shared cycles
        assert up.figure("answers_running") == up.figure("answers_waiting") == 0
