"""The loss mask covers what the target emits and nothing else, for any chat template."""

from __future__ import annotations

import copy
import datetime

import pytest

from drafterforge.data.chat import conversation_ids, extend_turn, prompt_ids
from drafterforge.errors import ArtifactError


def talk(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return ([{"role": "system", "content": system}] if system else []) + messages


def marked(tokenizer, ids: list[int], mask: list[int]) -> list[str]:
    """The text of every run of marked tokens."""
    assert len(ids) == len(mask)
    runs, before = [], 0
    for token, value in zip(ids, mask, strict=True):
        if value and not before:
            runs.append([])
        if value:
            runs[-1].append(token)
        before = value
    return [tokenizer.decode(run) for run in runs]


def test_prompt_ids_are_the_tokens_of_the_template_with_its_generation_prompt(chatml):
    messages = talk("hi", system="be kind")
    assert prompt_ids(chatml, messages) == chatml.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize("system", [None, "be kind"])
def test_mask_covers_each_answer_and_its_end_of_turn(chatml, system):
    messages = talk("hi", "hello", "and?", "that is all", system=system)
    ids, mask = conversation_ids(chatml, messages)
    assert ids == chatml.apply_chat_template(messages, return_dict=False)
    assert marked(chatml, ids, mask) == ["hello<|im_end|>", "that is all<|im_end|>"]


def test_prompt_and_answer_ids_are_those_of_decoding_even_where_a_token_would_cross(chatml):
    ids, mask = conversation_ids(chatml, talk("hi", "\nhello"))  # 'assistant\n' + '\nhello'
    prompt = prompt_ids(chatml, talk("hi"))
    assert ids[: len(prompt)] == prompt and sum(mask[: len(prompt)]) == 0
    assert marked(chatml, ids, mask) == ["\nhello<|im_end|>"]


def test_a_template_that_rewrites_history_marks_the_last_turn_only(thinking):
    messages = talk("hi", "<think>hm</think>hello", "and?", "<think>so</think>bye")
    ids, mask = conversation_ids(thinking, messages)
    assert marked(thinking, ids, mask) == ["<think>so</think>bye<|im_end|>"]
    assert "<think>hm" not in thinking.decode(ids)
    ids, mask = conversation_ids(thinking, talk("hi", "hello", "and?", "bye"))
    assert marked(thinking, ids, mask) == ["hello<|im_end|>", "bye<|im_end|>"]


def test_a_generation_prompt_that_is_no_part_of_history_still_gives_what_decoding_sees(chatml):
    tokenizer = retemplated(
        chatml,
        chatml.chat_template.replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif"),
    )
    ids, mask = conversation_ids(tokenizer, talk("hi", "hello"))
    prompt = prompt_ids(tokenizer, talk("hi"))
    assert tokenizer.decode(prompt).endswith("<think>")
    assert ids[: len(prompt)] == prompt
    assert marked(tokenizer, ids, mask) == ["hello<|im_end|>"]


def retemplated(tokenizer, template: str):
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = template
    return copied


def test_a_conversation_without_answer_or_started_by_the_assistant_is_marked_accordingly(chatml):
    ids, mask = conversation_ids(chatml, talk("hi"))
    assert ids == prompt_ids(chatml, talk("hi")) and sum(mask) == 0
    messages = [{"role": "assistant", "content": "welcome"}, *talk("hi", "hello")]
    assert marked(chatml, *conversation_ids(chatml, messages)) == ["hello<|im_end|>"]


def test_a_tokenizer_without_template_speaks_in_user_and_assistant_lines(plain):
    assert plain.decode(prompt_ids(plain, talk("hi"))) == "User: hi\nAssistant:"
    ids, mask = conversation_ids(plain, talk("hi", "hello", "and?", "bye"))
    assert plain.decode(ids) == "User: hi\nAssistant: hello<|im_end|>\nUser: and?\nAssistant: bye<|im_end|>\n"
    assert marked(plain, ids, mask) == [" hello<|im_end|>", " bye<|im_end|>"]


@pytest.mark.parametrize("answer", ["hello", "\n hello \n", "", "grüße"])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", ["chatml", "plain"])
def test_the_next_turn_keeps_prompt_and_sampled_answer_as_exact_prefix(request, name, answer, ended):
    tokenizer = request.getfixturevalue(name)
    ids = prompt_ids(tokenizer, talk("hi")) + tokenizer(answer)["input_ids"]
    ids += [tokenizer.eos_token_id] * ended
    longer = extend_turn(tokenizer, ids, talk("hi", answer, "and?"))
    assert longer[: len(ids)] == ids
    added = tokenizer.decode(longer[len(ids) :])
    end = "" if ended else "<|im_end|>"
    tail = {
        "chatml": "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n",
        "plain": "\nUser: and?\nAssistant:",
    }
    assert added.lstrip(" ") == end + tail[name]


def test_the_next_turn_is_rendered_anew_when_the_template_rewrites_the_answer(thinking):
    answer = "<think>hm</think>hello"
    ids = prompt_ids(thinking, talk("hi")) + thinking(answer)["input_ids"] + [thinking.eos_token_id]
    messages = talk("hi", answer, "and?")
    assert extend_turn(thinking, ids, messages) == prompt_ids(thinking, messages)


def test_a_template_that_prints_the_day_prints_the_one_it_is_given(chatml):
    tokenizer = retemplated(chatml, "{{ strftime_now('%d %b %Y') }} " + chatml.chat_template)
    text = tokenizer.decode(prompt_ids(tokenizer, talk("hi"), date=datetime.date(2024, 7, 26)))
    assert text.startswith("26 Jul 2024 <|im_start|>")


def test_what_a_template_refuses_is_quoted_in_part(chatml):
    tokenizer = retemplated(chatml, "{{ raise_exception('x\n' * 5000) }}")
    with pytest.raises(ArtifactError, match="refuses the roles") as caught:
        prompt_ids(tokenizer, [{"role": "user", "content": "hi"}] * 1000)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_a_template_that_writes_half_a_character_is_refused(chatml):
    tokenizer = retemplated(chatml, "\ud800" + chatml.chat_template)
    with pytest.raises(ArtifactError, match="refuses the roles"):
        prompt_ids(tokenizer, talk("hi"))


@pytest.mark.parametrize("message", [{"content": "hi"}, {"role": 3, "content": "hi"}])
def test_a_message_without_a_role_is_one_line(chatml, message):
    tokenizer = retemplated(chatml, "{{ raise_exception('no role') }}")
    with pytest.raises(ArtifactError, match=r"chat template refuses the roles \((none|3)\): no role"):
        prompt_ids(tokenizer, [message])


def test_a_template_that_refuses_a_role_is_one_line(chatml):
    tokenizer = retemplated(chatml, "{{ raise_exception('System role not supported') }}")
    with pytest.raises(ArtifactError, match=r"refuses the roles \(system, user\): System role not"):
        prompt_ids(tokenizer, talk("hi", system="be kind"))
