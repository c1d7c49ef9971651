"""Reads rows of prompts from a JSONL file, or a data set of the Hugging Face hub or on disk."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from drafterforge.config.data import TEXT, DataConfig, DomainConfig
from drafterforge.data.rows import Row
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten

log = logging.getLogger(__name__)
T = TypeVar("T")

EXAMPLE = '{"messages": [{"role": "user", "content": "..."}]}'
ROLES = ("system", "user", "assistant")
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
SPLITS |= {"test": "test", "eval": "test", "heldout": "test"}
MAX_MESSAGES = 256  # of a conversation; a chat template renders it once for each
SHUFFLE_BUFFER = 10_000  # rows of a stream
HINT = (
    "check dataset=, dataset_config= and dataset_split=, and that the hub can be reached, "
    "or type data=jsonl path=FILE.jsonl"
)
SURROGATE = "\\ud"  # begins the JSON escape of half a character beyond U+FFFF
_SHAREGPT = {"human": "user", "gpt": "assistant"}
_COLUMNS = ("messages", "conversations", "turns", "prompt")
_BUILDERS = {"jsonl": "json", "json": "json", "parquet": "parquet", "arrow": "arrow", "csv": "csv"}


class HasPrompts(Protocol):
    """Config of a command that reads prompts."""

    data: DataConfig


def parse_messages(value: Any) -> tuple[dict[str, str], ...]:
    """Returns messages from a text, a list of user turns or a list of messages; else raises ValueError."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__}, wanted text or a list of messages")
    messages = tuple(_message(item) for item in value)
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"{len(messages)} messages, wanted at most {MAX_MESSAGES}")
    if not any(message["role"] == "user" for message in messages):
        raise ValueError(f"no user message among {len(messages)} messages")
    return messages


def _message(item: Any) -> dict[str, str]:
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    if not isinstance(item, dict):
        raise ValueError(f'the message {quote(item, 60)}, wanted {{"role": ..., "content": ...}}')
    role = item.get("role", item.get("from"))
    role = _SHAREGPT.get(role, role) if isinstance(role, str) else role
    content = item.get("content", item.get("value"))
    if role not in ROLES:
        raise ValueError(f"the role {quote(role, 60)}, wanted one of {', '.join(ROLES)}")
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"the content {quote(content, 60)} of a {role} message, wanted text")
    return {"role": role, "content": content}


# --- JSONL ---------------------------------------------------------------------------------------


def jsonl_rows(path: str | Path, licences: Sequence[str] = ()) -> Iterator[Row]:
    """Yields the rows of a JSONL file, or of all in a folder; ArtifactError names the file and line of a bad one.

    licences: if any, only lines whose `licence` (or `license`) starts with one of these are read, ignoring case.
    """
    path = Path(path).expanduser()
    hint = "type data=jsonl path=FILE.jsonl"
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.jsonl")) or sorted(path.glob("*.json"))  # Ray writes lines to *.json
    if not files:
        raise ArtifactError(f"{path} holds no *.jsonl and no *.json; {hint}, or path=FOLDER with such files")
    refused: Counter[str] = Counter()
    num_rows = 0
    for file in files:
        for row in json_lines(file, partial(_jsonl_row, name=file.name), EXAMPLE, hint):
            if is_allowed(row.licence, licences):
                num_rows += 1
                yield row
            else:
                refused[row.licence or "none"] += 1
    if refused:
        counts = ", ".join(f"{name} {count}" for name, count in refused.most_common())
        if not num_rows:
            raise ArtifactError(f"{path} has no lines of data.licences=[{','.join(licences)}]; found: {counts}")
        log.warning("%s: dropped %d lines of other licences (%s)", path, refused.total(), counts)


def check_rows(cfg: HasPrompts) -> None:
    """ArtifactError if a JSONL file of prompts has a bad line, no line, or none of the answers; imports no torch."""
    if cfg.data.source != "jsonl" or getattr(cfg, "answers", []):
        return
    has_answer = {any(message["role"] == "assistant" for message in row.messages) for row in jsonl_rows(cfg.data.path)}
    if not has_answer:
        raise ArtifactError(f"{cfg.data.path} has no prompts; wanted lines of {EXAMPLE}")
    if cfg.data.answers == "given" and has_answer == {False}:
        raise ArtifactError(
            f"no line of {cfg.data.path} has an assistant turn, which data.answers=given needs; type "
            "data.answers=target to let the target answer"
        )


def is_allowed(licence: str | None, licences: Sequence[str]) -> bool:
    """Whether a licence starts with one of `licences`; True if there are none."""
    return not licences or (licence or "").lower().startswith(tuple(name.lower() for name in licences))


def json_lines(path: Path, parse: Callable[[dict[str, Any], int], T], example: str, hint: str) -> Iterator[T]:
    """Yields `parse(object, line number)` of every line; its ValueErrors become ArtifactErrors with file and line.

    example: of a valid line.  hint: what to type if the file cannot be read.
    """
    if path.exists() and not path.is_file():  # a pipe can be read once only, and a device without end
        raise ArtifactError(f"{path} is no regular file, and is read more than once; write it to a file and {hint}")
    try:
        file = open(path, "rb")  # noqa: SIM115 (the with below closes it; only errors of opening are caught here)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}; {hint}") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8-sig").rstrip()
                record = json.loads(text)
                if SURROGATE in text.lower():  # such an escape may stand for half a character, which no file can hold
                    json.dumps(record, ensure_ascii=False).encode()
                if not isinstance(record, dict):
                    raise ValueError(f"a {type(record).__name__}, wanted an object like {example}")
                yield parse(record, number)
            except (ValueError, RecursionError) as error:
                raise ArtifactError(f"{path}, line {number}: {_reason(error, example)}") from error


def _reason(error: Exception, example: str) -> str:
    if isinstance(error, RecursionError):
        return f"found values that are nested too deeply, wanted {example}"
    if isinstance(error, UnicodeEncodeError):
        half = ascii(error.object[error.start])
        return f"found half a character ({half}, a surrogate without its pair), wanted Unicode text"
    if isinstance(error, UnicodeDecodeError):
        return f"found bytes that are not UTF-8 ({error.reason} at byte {error.start}), wanted JSON"
    if isinstance(error, json.JSONDecodeError):
        return f"found no JSON ({error.msg} at column {error.colno}), wanted {example}"
    return f"found {error}"


def _jsonl_row(record: dict[str, Any], number: int, name: str) -> Row:
    names = {key: _name(record, key) for key in ("id", "task", "group", "domain", "split", "licence", "license")}
    split = names["split"]
    if split is not None and split.lower() not in SPLITS:
        raise ValueError(f"split {quote(split)}, wanted train, val or test")
    return Row(
        messages=_jsonl_messages(record),
        source=f"{name}:{number}",
        number=number,
        id=names["id"],
        task=names["task"] or names["group"],
        domain=names["domain"],
        split=SPLITS[split.lower()] if split else None,
        licence=names["licence"] or names["license"],
    )


def _name(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{key}={quote(value, 60)}, wanted text")
    return str(value)


def _jsonl_messages(record: dict[str, Any]) -> tuple[dict[str, str], ...]:
    for key, kind in (
        ("messages", list),
        ("conversations", list),
        ("turns", list),
        ("prompt", str),
    ):
        value = record.get(key)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"a {type(value).__name__} in {key!r}, wanted a {kind.__name__}")
    history = record.get("messages") or record.get("conversations")
    messages = parse_messages(history) if history else ()
    answered = any(message["role"] == "assistant" for message in messages)
    if record.get("turns") and not answered:  # question sets repeat the first turn in `messages`
        system = tuple(message for message in messages if message["role"] == "system")
        return system + parse_messages(record["turns"])
    if messages:
        return messages
    if record.get("prompt"):
        return parse_messages(record["prompt"])
    if empty := [key for key in _COLUMNS if key in record]:
        raise ValueError(f"an empty {empty[0]!r}, wanted the text that is asked")
    keys = shorten(", ".join(sorted(record))) or "none"
    raise ValueError(f"no messages (keys: {keys}), wanted 'messages', 'conversations', 'turns' or 'prompt'")


# --- data sets -----------------------------------------------------------------------------------


def hf_rows(data: DataConfig, domain: DomainConfig, seed: int) -> Iterator[Row]:
    """Yields the rows of a data set, shuffled by `seed`; those that are no prompts are dropped and counted."""
    name = data.dataset or domain.dataset
    if not name:
        raise ConfigError(f"domain={domain.name} has no default data set; type data=hf dataset=HUB_ID column=COLUMN")
    is_default = not data.dataset
    config = data.dataset_config or (domain.dataset_config if is_default else None)
    split = data.dataset_split or (domain.dataset_split if is_default else "train")
    column_name = data.column or (domain.column if is_default else "")
    skipped, example, template = 0, "", prompt_template(data, domain)
    with dataset_errors(name, HINT):
        rows = _load(name, config, split, data.streaming)
        shuffle_options = {"buffer_size": SHUFFLE_BUFFER} if data.streaming else {}
        column = ""
        for number, record in enumerate(rows.shuffle(seed=seed, **shuffle_options)):
            column = column or _column(column_name, record, name)
            try:
                cell = _cell(record, column)
                if template and isinstance(cell, str) and cell.strip():
                    cell = template.replace(TEXT, cell)
                messages = parse_messages(cell)
            except ValueError as error:
                skipped += 1
                example = example or f"number {number} after shuffling: found {error}"
                continue
            task = next((record[k] for k in ("task", "group") if _is_text(record.get(k))), None)
            yield Row(messages, source=name, number=number, task=task)
    if skipped:
        log.warning("dropped %d rows of %s, whose column %s is no prompt, such as %s", skipped, name, column, example)


def prompt_template(data: DataConfig, domain: DomainConfig) -> str:
    """The prompt of each text of a data set, with `{text}` in its place; empty: the text itself."""
    return data.template or (domain.template if data.source == "hf" and not data.dataset else "")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _cell(record: dict[str, Any], column: str) -> Any:
    """The value of a column; dots reach into nested records, as in `translation.de`."""
    if column in record:
        return record[column]
    for part in column.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _column(column: str, record: dict[str, Any], name: str) -> str:
    if column in record or (column and _cell(record, column) is not None):
        return column
    columns = shorten(", ".join(record), 300)
    if column:
        raise ArtifactError(f"data set {name!r} has no column {column!r}; type column= one of {columns}")
    for candidate in _COLUMNS:
        if candidate in record:
            return candidate
    raise ArtifactError(f"which column of data set {name!r} holds the prompts? type column= one of {columns}")


def _load(name: str, config: str | None, split: str, streaming: bool) -> Any:
    import datasets  # heavy, and needed by data=hf alone

    path = Path(name).expanduser()
    options = {"split": split, "streaming": streaming}
    if path.is_file():
        builder = _BUILDERS.get(path.suffix.lstrip("."))
        if builder is None:
            raise ArtifactError(f"{path} is not a jsonl, parquet, arrow or csv file; type dataset=FOLDER")
        return datasets.load_dataset(builder, data_files={split: str(path)}, **options)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        saved = datasets.load_from_disk(str(path))
        saved = saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        return saved.to_iterable_dataset() if streaming else saved
    if path.is_dir():
        return datasets.load_dataset(str(path), config, **options)
    if name.startswith((".", "/", "~")):
        raise ArtifactError(f"no data set at {name}; type data=hf dataset=FOLDER, or a hub id")
    return datasets.load_dataset(name, config, **options)


@contextlib.contextmanager
def dataset_errors(name: str, hint: str) -> Iterator[None]:
    """Turns any error of reading a data set into a one-line ArtifactError that ends in `hint`."""
    try:
        yield
    except (ArtifactError, ConfigError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ArtifactError(f"cannot read data set {name!r}: {reason}; {hint}") from error
