"""Lets the target answer prompts, shard by shard; a killed run resumes at its first unfinished shard."""

from __future__ import annotations

import datetime
import json
import logging
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import (
    file_sha256,
    link_or_copy,
    save_json_atomic,
    write_bytes_atomic,
)
from drafterforge.artifacts.manifest import Manifest, canonical_json
from drafterforge.artifacts.run import NamedTarget, artifact_run
from drafterforge.config.data import DataConfig
from drafterforge.data.answers import SPLITS, Answer, AnswerSet, answer_stats, encode_shard
from drafterforge.data.chat import Message, conversation_ids, extend_turn, prompt_ids
from drafterforge.data.prompts import Prompt
from drafterforge.errors import ArtifactError, ChatTemplateError, ConfigError

log = logging.getLogger(__name__)

# Answers to (prompts, max_new_tokens, seed); after an empty one its conversation ends, without that turn.
Generate = Callable[[list[list[int]], int, int], list[list[int]]]
Progress = Callable[[int, int, int], None]  # answer tokens so far, answers so far, total answers

DATE = datetime.date(2024, 7, 26)  # for templates that print the day: fixed, so prompts do not depend on it


class UnansweredError(ArtifactError):
    """A prompt of data.answers=given without an answer."""


def prepare_answers(
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    tokenizer: Any,
    generate: Generate | None,
    data: DataConfig,
    path: Path | str,
    target: NamedTarget,
    config: Mapping[str, Any],
    seed: int,
    eos_ids: Collection[int],
    progress: Progress | None = None,
    overwrite: bool = False,
) -> AnswerSet:
    """Answers the prompts of every split and returns the finished `answers` artifact at `path`.

    An existing artifact with the same config and prompts is reused; one that differs raises ArtifactError, or is
    replaced with `overwrite`. `generate` may be None with `data.answers=given`.
    """
    path = Path(path)
    conversations = [c for split in SPLITS for c in encode_prompts(tokenizer, split, prompts, data)]
    digest = _digest(conversations)
    run = artifact_run(path, "answers", target, config, overwrite=overwrite)
    if run.existing is not None and _matches(run.existing, digest, eos_ids, path, overwrite):
        return AnswerSet(path, run.existing)

    _warn_of_cut_answers(conversations, data.max_new_tokens)
    staging = run.stage(**_staged_settings(digest, data, seed, eos_ids))
    shards = _shards(conversations, data.shard_size)
    tokens = answers = 0
    seconds = 0.0
    for name, shard in shards.items():
        record = _finished_shard(staging, name)
        if record is None:
            started = time.perf_counter()
            if data.answers != "given":
                assert generate is not None, f"data.answers={data.answers} needs a generate function"
                _answer_shard(tokenizer, generate, name, shard, data, seed, frozenset(eos_ids))
            record = _write_shard(staging, name, shard, started)
        tokens += record["answer_tokens"]
        answers += len(shard)
        seconds += record["seconds"]
        if progress is not None:
            progress(tokens, answers, len(conversations))

    metrics: dict[str, Any] = {"prompts_sha256": digest, "eos_ids": sorted(eos_ids)}
    if data.answers != "given" and seconds:
        metrics["tokens_per_s"] = round(tokens / seconds, 1)
    with run.write(metrics) as folder:
        files = [folder / f"{name}.arrow" for name in shards]
        for file in files:
            link_or_copy(staging / file.name, file)
        stats = answer_stats(files)
        for split, figures in stats["splits"].items():
            figures["left_out"] = len(prompts[split]) - figures["answers"]
        save_json_atomic(folder / "stats.json", stats)
        metrics |= stats
    return AnswerSet.open(path, target.fingerprint, verify=False)


def existing_answers(
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    tokenizer: Any,
    data: DataConfig,
    path: Path,
    target: NamedTarget,
    config: Mapping[str, Any],
    seed: int,
    eos_ids: Collection[int],
    overwrite: bool,
) -> AnswerSet | None:
    """The artifact that `prepare_answers` would reuse; None if it would answer.  ArtifactError as it raises them."""
    run = artifact_run(path, "answers", target, config, overwrite=overwrite)
    digest = _digest([c for split in SPLITS for c in encode_prompts(tokenizer, split, prompts, data)])
    if run.existing is not None and _matches(run.existing, digest, eos_ids, path, overwrite):
        return AnswerSet(path, run.existing)
    run.require_stageable(**_staged_settings(digest, data, seed, eos_ids))
    return None


def _staged_settings(digest: str, data: DataConfig, seed: int, eos_ids: Collection[int]) -> dict[str, Any]:
    """Values that determine the content of shards, beside the recorded settings.  digest: of the prompts."""
    limits = [data.answers, data.max_prompt_tokens, data.max_new_tokens, data.temperature]
    return dict(prompts=digest, limits=limits, shard_size=data.shard_size, seed=seed, eos_ids=sorted(eos_ids))


# --- conversations -------------------------------------------------------------------------------


@dataclass
class Conversation:
    """A prompt, the turns answered so far, and the user turns still to be answered."""

    index: int  # of the prompt in its split
    split: str
    prompt: Prompt
    ids: list[int]
    mask: list[int]
    messages: list[Message] = field(default_factory=list)  # that `ids` encode
    turns: list[list[Message]] = field(default_factory=list)  # user turns still to be answered
    finished: bool = True
    is_cut: bool = False  # whether a given answer is longer than the limit

    def add_answer(self, answer: list[int], text: str, finished: bool) -> None:
        self.ids = self.ids + answer
        self.mask = self.mask + [1] * len(answer)
        self.messages = [*self.messages, {"role": "assistant", "content": text}]
        self.finished = finished

    def add_turn(self, tokenizer: Any, max_prompt_tokens: int) -> bool:
        """Appends the user's next turn; False if there is none, it is refused, or the prompt is too long."""
        if not self.turns:
            return False
        messages = self.messages + self.turns[0]
        try:
            ids = extend_turn(tokenizer, self.ids, messages, date=DATE)
        except ChatTemplateError:
            return False
        if len(ids) > max_prompt_tokens:
            return False
        extends = ids[: len(self.ids)] == self.ids  # else the template rewrote earlier turns
        self.mask = (self.mask if extends else []) + [0] * (len(ids) - extends * len(self.ids))
        self.ids, self.messages, self.turns = ids, messages, self.turns[1:]
        return True

    def answer(self) -> Answer:
        return Answer(
            id=self.prompt.id,
            domain=self.prompt.domain,
            task=self.prompt.task,
            split=self.split,
            input_ids=self.ids,
            loss_mask=self.mask,
            prompt_tokens=self.mask.index(1),
            answer_tokens=sum(self.mask),
            finished=self.finished,
        )


def encode_prompts(
    tokenizer: Any, split: str, prompts: Mapping[str, Sequence[Prompt]], data: DataConfig
) -> list[Conversation]:
    """Encodes the prompts of a split; drops those that are too long, refused by the chat template, or unanswered."""
    encode = _recorded_conversation if data.answers == "given" else _open_conversation
    fitting, refused = [], []  # conversations, errors
    num_prompts = len(prompts.get(split, ()))
    for index, prompt in enumerate(prompts.get(split, ())):
        try:
            conversation = encode(tokenizer, index, split, prompt, data)
        except (ChatTemplateError, UnansweredError) as error:
            refused.append(f"prompt {prompt.id!r} ({prompt.source}): {error}")
        else:
            fitting += [] if conversation is None else [conversation]
    num_long = num_prompts - len(fitting) - len(refused)
    if num_prompts and not fitting:
        if num_long == num_prompts:
            raise ArtifactError(
                f"all {num_prompts} {split} prompts are longer than {data.max_prompt_tokens} tokens; "
                "type data.max_prompt_tokens=MORE"
            )
        raise ArtifactError(
            f"none of {num_prompts} {split} prompts can be used ({num_long} are too long); {refused[0]}"
        )
    if num_long:
        log.warning(
            "%d of %d %s prompts are longer than %d tokens and were dropped (data.max_prompt_tokens)",
            num_long, num_prompts, split, data.max_prompt_tokens,
        )  # fmt: skip
    if refused:
        log.warning("%d of %d %s prompts were dropped, such as %s", len(refused), num_prompts, split, refused[0])
    return fitting


def within_context(data: DataConfig, longest: int) -> DataConfig:
    """`data` with max_prompt_tokens cut so that prompt and answer fit.  longest: tokens that the target reads."""
    room = longest - data.max_new_tokens
    if room < 1:
        raise ConfigError(
            f"data.max_new_tokens={data.max_new_tokens} leaves no room for a prompt: the target reads {longest} "
            f"tokens; type data.max_new_tokens={longest // 2}"
        )
    return replace(data, max_prompt_tokens=min(data.max_prompt_tokens, room))


def _open_conversation(tokenizer: Any, index: int, split: str, prompt: Prompt, data: DataConfig) -> Conversation | None:
    """Encodes a conversation up to the first turn that the target must answer; None if it is too long."""
    messages, *turns = user_turns(prompt.messages)
    ids = prompt_ids(tokenizer, messages, date=DATE)
    if len(ids) > data.max_prompt_tokens:
        return None
    return Conversation(index, split, prompt, ids, [0] * len(ids), messages, turns)


def user_turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Splits the messages after each unanswered user message.

    Assistant messages inside the history stay as context; trailing ones are dropped: the target writes its own.
    """
    messages = list(messages)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    turns: list[list[Message]] = [[]]
    for message, following in zip_longest(messages, messages[1:]):
        turns[-1].append(message)
        if message["role"] == "user" and following is not None and following["role"] == "user":
            turns.append([])
    return turns


def _recorded_conversation(
    tokenizer: Any, index: int, split: str, prompt: Prompt, data: DataConfig
) -> Conversation | None:
    """Encodes a conversation with the answers of the data, cut where a limit is exceeded; None if none fits.

    Raises UnansweredError if it has none.
    """
    if transcript := prompt.transcript:
        ids = list(transcript.ids)
        mask = [int(index >= transcript.prompt_tokens) for index in range(len(ids))]
    else:
        ids, mask = conversation_ids(tokenizer, prompt.messages, date=DATE)
    if 1 not in mask:
        raise UnansweredError(
            "it has no assistant turn, which data.answers=given needs; type data.answers=target to let the target "
            "answer"
        )
    end, fits = 0, True
    for start, stop in marked_spans(mask):
        if start > data.max_prompt_tokens:
            break
        fits = stop - start <= data.max_new_tokens
        end = stop if fits else start + data.max_new_tokens
        if not fits:
            break
    if not end:
        return None
    finished = fits and (transcript is None or transcript.finished)
    return Conversation(index, split, prompt, ids[:end], mask[:end], finished=finished, is_cut=not fits)


def _warn_of_cut_answers(conversations: Sequence[Conversation], limit: int) -> None:
    cut = sum(conversation.is_cut for conversation in conversations)
    if cut:
        total = sum(len(marked_spans(conversation.mask)) for conversation in conversations)
        log.warning("%d of %d answers were cut at data.max_new_tokens=%d", cut, total, limit)


def marked_spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (start, stop) of every run of ones."""
    spans, start = [], 0
    for value, run in groupby(mask):
        stop = start + sum(1 for _ in run)
        if value:
            spans.append((start, stop))
        start = stop
    return spans


def _answer_shard(
    tokenizer: Any,
    generate: Generate,
    name: str,
    shard: Sequence[Conversation],
    data: DataConfig,
    seed: int,
    eos_ids: frozenset[int],
) -> None:
    turn, active = 0, list(shard)
    while active:
        key = sha256(f"{seed}/{name}/{turn}".encode()).digest()
        answers = generate([list(c.ids) for c in active], data.max_new_tokens, int.from_bytes(key[:4], "big") >> 1)
        assert len(answers) == len(active), f"{len(active)} prompts, {len(answers)} answers"
        active = [conversation for conversation, answer in zip(active, answers, strict=True) if answer]
        for conversation, answer in zip(active, filter(None, answers), strict=True):
            end = next((i + 1 for i, token in enumerate(answer) if token in eos_ids), None)
            answer = list(map(int, answer[:end]))
            text = tokenizer.decode(answer, skip_special_tokens=True)
            conversation.add_answer(answer, text, finished=end is not None)
        active = [c for c in active if c.add_turn(tokenizer, data.max_prompt_tokens)]
        turn += 1


# --- shards --------------------------------------------------------------------------------------


def _shards(conversations: Sequence[Conversation], size: int) -> dict[str, list[Conversation]]:
    """Cuts each split into shards of similar lengths, longest first: memory runs out early or never."""
    shards = {}
    for split in SPLITS:
        rows = [c for c in conversations if c.split == split]
        rows.sort(key=lambda c: (-len(c.ids), c.index))
        for number, start in enumerate(range(0, len(rows), size)):
            shards[f"{split}-{number:05d}"] = rows[start : start + size]
    return shards


def _write_shard(staging: Path, name: str, shard: Sequence[Conversation], started: float) -> dict[str, Any]:
    rows = [(c.index, c.answer()) for c in shard if any(c.mask)]
    content = encode_shard(rows)
    write_bytes_atomic(staging / f"{name}.arrow", content)
    record = {
        "sha256": sha256(content).hexdigest(),
        "rows": len(rows),
        "answer_tokens": sum(answer.answer_tokens for _, answer in rows),
        "seconds": time.perf_counter() - started,
    }
    save_json_atomic(staging / f"{name}.json", record)  # last: it marks the shard as finished
    return record


def _finished_shard(staging: Path, name: str) -> dict[str, Any] | None:
    try:
        record = json.loads((staging / f"{name}.json").read_bytes())
        intact = file_sha256(staging / f"{name}.arrow") == record["sha256"]
    except (OSError, ValueError):
        return None
    return record if intact else None


def _digest(conversations: Sequence[Conversation]) -> str:
    digest = sha256()
    for c in conversations:
        head = (c.split, c.index, c.prompt.id, c.prompt.domain, c.prompt.task, c.turns, len(c.ids))
        digest.update(canonical_json(head))
        digest.update(array("i", c.ids).tobytes() + bytes(c.mask))
    return digest.hexdigest()


def _matches(manifest: Manifest, digest: str, eos_ids: Collection[int], path: Path, overwrite: bool) -> bool:
    """Whether the answers are of these prompts and end at these ids; if not, and without `overwrite`, ArtifactError."""
    is_same_end = manifest.metrics.get("eos_ids", sorted(eos_ids)) == sorted(eos_ids)  # earlier versions wrote none
    if manifest.metrics.get("prompts_sha256") == digest and is_same_end:
        return True
    if overwrite:
        return False
    difference = "from other prompts" if is_same_end else "by a target whose answers end at other tokens"
    raise ArtifactError(
        f"{path} was made with the same settings but {difference}; "
        f"type answers={path.name} to train on it, overwrite=true to replace it, or name=OTHER to keep it"
    )
