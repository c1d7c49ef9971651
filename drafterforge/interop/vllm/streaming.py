"""Lets vLLM answer prompts and stream the answers, with features, to a trainer: `prepare-data data.stream=FOLDER`.

Runs where vLLM is installed.  A run that was killed goes on with the prompts whose answers are not in the stream yet.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drafterforge.artifacts.manifest import canonical_json
from drafterforge.config.catalogue import did_you_mean
from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.data import DataConfig
from drafterforge.config.progress import bar, say
from drafterforge.data.answering import Conversation, encode_prompts, marked_spans, within_context
from drafterforge.data.prompts import load_prompts
from drafterforge.data.stream import (
    DONE,
    GB,
    POLL_S,
    StreamRecord,
    finish_stream,
    open_record,
    readers_finished,
    require_no_writer,
    used_bytes,
)
from drafterforge.errors import ArtifactError, ConfigError, shorten
from drafterforge.interop.layout import TargetFacts, read_target
from drafterforge.interop.vllm.contract import USED_STREAMING, missing_of
from drafterforge.interop.vllm.plugin import install_command
from drafterforge.interop.vllm.starting import ended_by_signals
from drafterforge.targets.load import end_tokens, load_tokenizer, locate_target, longest_sequence

METHOD = "extract_hidden_states"
LABELS, PARAMETERS = "labels", "drafterforge"  # keys of kv_connector_extra_config and of kv_transfer_params
SPLITS = ("val", "test", "train")  # in the order in which they are answered
IN_FLIGHT = 2  # requests that vLLM holds, as a multiple of those that it decodes together


def engine_arguments(folder: str, limit_gb: float, taps: Sequence[int], num_layers: int, **labels: Any) -> dict:
    """Arguments with which vLLM writes a stream, of its `LLM`, and as JSON of `vllm serve`.

    labels: arguments of `StreamWriter`.
    """
    layers = [*taps, num_layers]
    return {
        "speculative_config": {
            "method": METHOD,
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
        },
        "kv_transfer_config": {
            "kv_connector": "StreamConnector",
            "kv_connector_module_path": "drafterforge.interop.vllm.extraction",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"stream": folder, "stream_gb": limit_gb, LABELS: labels},
        },
    }


@dataclass
class Turn:
    """A conversation that vLLM answers."""

    number: int  # in the stream
    conversation: Conversation
    is_answered: bool = (
        False  # only features are missing: the next user turn, which would have come with them, is too long
    )

    @property
    def is_recorded(self) -> bool:
        """Whether the request of this turn goes into the stream; the last one has the features of all turns."""
        return self.is_answered or not self.conversation.turns

    @property
    def ids(self) -> list[int]:
        """Tokens that vLLM reads."""
        return self.conversation.ids[:-1] if self.is_answered else self.conversation.ids


def stream_answers(cfg: PrepareDataConfig) -> Path:
    """Answer the configured prompts with vLLM into data.stream; returns the folder once all are there."""
    folder = stream_folder(cfg)
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"data.stream= answers with vLLM, which cannot be imported here ({shorten(error, 100)}); type "
            "scripts/clients_env vllm, or see docs/vllm.md"
        ) from error
    if names := missing_of(USED_STREAMING.items()):
        raise ConfigError(f"this vLLM lacks {', '.join(names)}, which data.stream= uses; type {install_command()}")
    require_arguments(cfg.data.vllm)
    prompts = load_prompts(cfg.data, cfg.domain, cfg.seed)
    facts = read_target(cfg.target)
    data = within_context(cfg.data, longest_request(cfg.data, facts))
    cfg = dataclasses.replace(cfg, data=data)
    _, target_folder = locate_target(cfg.target)
    tokenizer = load_tokenizer(target_folder)
    stop_ids = end_tokens(SimpleNamespace(config=facts.config, generation_config=generation_config(facts)), tokenizer)
    conversations = [
        conversation for split in SPLITS for conversation in encode_prompts(tokenizer, split, prompts, data)
    ]
    labels = {
        "target": facts.fingerprint,
        "prompts": digest(conversations),
        "answers": [data.max_new_tokens, data.temperature, cfg.seed],
    }
    held_out = {
        split: sum(conversation.split == split for conversation in conversations)
        for split in SPLITS
        if split != "train"
    }
    require_no_writer(folder)  # the worker process repeats both checks, but its errors are tracebacks
    open_record(folder, int(data.stream_gb * GB), facts.taps, labels, held_out)
    if (folder / DONE).exists():
        return folder
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # the engine writes the last answers while it has no requests
    arguments = {"dtype": "auto" if cfg.target.dtype == "auto" else cfg.target.dtype, "seed": cfg.seed}
    arguments |= engine_arguments(
        str(folder), data.stream_gb, facts.taps, facts.config.num_hidden_layers, labels=labels, held_out=held_out
    )
    try:
        with ended_by_signals():
            llm = vllm.LLM(model=str(target_folder), **(arguments | data.vllm))
    except Exception as error:
        message = (
            f"vLLM did not start ({shorten(error, 200)}); its lines above say more; where memory is short, type "
            "'data.vllm={max_model_len: 4096}'"
        )
        raise_error(folder, ArtifactError(message))
    try:
        answer_all(cfg, folder, llm, conversations, tokenizer, stop_ids)
    except Exception as error:
        raise_error(folder, error)
    finally:
        llm.llm_engine.engine_core.shutdown()
    return folder


def stream_folder(cfg: PrepareDataConfig) -> Path:
    """The folder of the stream."""
    return Path(cfg.data.stream).expanduser().absolute()


def longest_request(data: DataConfig, facts: TargetFacts) -> int:
    """Tokens of the longest prompt with its answer that vLLM reads."""
    longest, limit = longest_sequence(facts.config), data.vllm.get("max_model_len")
    return min(longest, limit) if isinstance(limit, int) and limit > 0 else longest


def require_arguments(typed: Mapping[str, Any]) -> None:
    """ConfigError if a key of `data.vllm` is no argument of vLLM's engine."""
    from vllm import EngineArgs

    valid = {field.name for field in dataclasses.fields(EngineArgs)}
    for key in typed.keys() - valid:
        raise ConfigError(f"data.vllm.{key} is no argument of vLLM's engine{did_you_mean(key, valid)}")


def generation_config(facts: TargetFacts) -> Any:
    """The target's generation config; None if it has none."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(facts.model)
    except OSError:
        return None


def digest(conversations: Sequence[Conversation]) -> str:
    """A hash of all prompts."""
    total = sha256()
    for conversation in conversations:
        prompt = conversation.prompt
        head = (conversation.split, prompt.id, prompt.domain, prompt.task, conversation.turns, conversation.ids)
        total.update(canonical_json(head))
    return total.hexdigest()


def raise_error(folder: Path, error: Exception) -> None:
    """Raise the error of the stream's writer, which vLLM hides, else the error itself."""
    record = StreamRecord.read(folder)
    if record is not None and record.error:
        raise ArtifactError(record.error) from error
    raise error


def answer_all(
    cfg: PrepareDataConfig,
    folder: Path,
    llm: Any,
    conversations: Sequence[Conversation],
    tokenizer: Any,
    stop_ids: frozenset[int],
) -> None:
    """Answer conversations until all are in the stream or its readers have finished."""
    record = StreamRecord.read(folder)
    engine, data = llm.llm_engine, cfg.data
    turns = deque(
        Turn(number, conversation) for number, conversation in enumerate(conversations) if not record.has(number)
    )
    if len(turns) < len(conversations):
        say(f"stream: {len(conversations) - len(turns)} of {len(conversations)} answers are there already")
    window = IN_FLIGHT * engine.vllm_config.scheduler_config.max_num_seqs
    running: dict[str, Turn] = {}
    tokens, began = 0, time.perf_counter()
    with bar(f"streaming {cfg.domain.name}", len(conversations), len(conversations) - len(turns)) as progress:
        while turns or running:
            if readers_finished(folder):
                say("stream: its readers have finished; no more answers are needed")
                return
            while turns and len(running) < window:
                turn = turns.popleft()
                name = f"{turn.number}-{len(turn.ids)}"
                running[name] = turn
                engine.add_request(name, {"prompt_token_ids": turn.ids}, sampling(cfg, turn, stop_ids))
            for output in engine.step():
                if not output.finished:
                    continue
                turn, completion = running.pop(output.request_id), output.outputs[0]
                if not turn.is_answered:
                    answer = list(completion.token_ids)
                    tokens += len(answer)
                    text = tokenizer.decode(answer, skip_special_tokens=True)
                    turn.conversation.add_answer(answer, text, finished=completion.finish_reason == "stop")
                if turn.is_recorded:
                    rate = tokens / (time.perf_counter() - began)
                    progress.advance(1, f"{rate:.0f} tokens/s, {used_bytes(folder) / GB:.3g} GB in the stream")
                else:
                    turn.is_answered = not turn.conversation.add_turn(tokenizer, data.max_prompt_tokens)
                    turns.appendleft(turn)
        for _ in waiting_for(folder, len(conversations)):
            if readers_finished(folder):
                return
    finish_stream(folder)


def sampling(cfg: PrepareDataConfig, turn: Turn, stop_ids: frozenset[int]) -> Any:
    """How vLLM answers a turn, and what the connector must know of it."""
    from vllm import SamplingParams

    conversation, data = turn.conversation, cfg.data
    prompt = conversation.prompt
    named = {
        "number": turn.number,
        "id": prompt.id,
        "domain": prompt.domain,
        "task": prompt.task,
        "split": conversation.split,
        "answered": marked_spans(conversation.mask),
        "skip": not turn.is_recorded,
    }
    if turn.is_answered:
        named |= {"last": conversation.ids[-1], "finished": conversation.finished}
    return SamplingParams(
        temperature=data.temperature,
        max_tokens=1 if turn.is_answered else data.max_new_tokens,
        stop_token_ids=sorted(stop_ids),
        seed=cfg.seed * 1_000_003 + turn.number if data.temperature else None,
        detokenize=False,
        extra_args={"kv_transfer_params": {PARAMETERS: named}},
    )


def waiting_for(folder: Path, count: int) -> Iterator[None]:
    """Yields until a stream has so many answers."""
    while True:
        record = StreamRecord.read(folder)
        if record.error:
            raise ArtifactError(record.error)
        if record.answers >= count:
            return
        yield
        time.sleep(POLL_S)
