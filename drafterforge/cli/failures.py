"""An exception as an exit code and one line for the user."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator

from drafterforge.artifacts.atomic import full_disk
from drafterforge.errors import CheckFailedError, DrafterforgeError, RankLostError, Terminated, shorten
from drafterforge.training.launch import RANK_LOST

CHECK_FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130  # exit code of a program that SIGINT ended
TERMINATED = 143  # the same for SIGTERM
NO_HOME = "Could not determine home directory."  # pathlib's error for `~NAME` of a user that is not there
OUT_OF_MEMORY = "the GPU is out of memory"
FEWER_TOKENS = (
    "if the target was answering, type a smaller data.batch_size=; if a drafter was trained, a smaller "
    "trainer.tokens_per_batch= and a larger trainer.accumulate=; `drafterforge plan train-drafter` estimates what fits"
)


def exit_code(error: BaseException) -> int:
    """Of a command that ended with this exception."""
    if isinstance(error, RankLostError):
        return RANK_LOST
    if isinstance(error, DrafterforgeError):
        return CHECK_FAILED if isinstance(error, CheckFailedError) else USER_ERROR
    chain = list(_chain(error))
    if any(isinstance(e, Terminated) for e in chain):
        return TERMINATED
    return INTERRUPTED if any(isinstance(e, KeyboardInterrupt) for e in chain) else USER_ERROR


def message_line(error: BaseException, writing: str | None, resumes: bool, has_data: bool = False) -> str | None:
    """The message for the user; None for a bug, which is reported with its traceback.

    resumes: the same command continues.  has_data: it reads the keys `data.*`.
    """
    if isinstance(error, DrafterforgeError):
        return _flatten(error)
    chain = list(_chain(error))
    if any(isinstance(e, KeyboardInterrupt) for e in chain):
        verb = "terminated" if any(isinstance(e, Terminated) for e in chain) else "interrupted"
        return verb + ("; finished work is kept; type the same command to continue" if resumes else "")
    full = [e for e in chain if full_disk(e)]
    if full:
        _drop_stdout_if_full()
        filenames = [e.filename for e in full if getattr(e, "filename", None)]
        path = os.fsdecode(filenames[0]) if filenames else writing
        where = f"while writing {path}" if path else "while writing"
        return f"{full_disk(full[0])} {where}; free some space and type the same command again"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror}: {error.filename or writing}"
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR):
        return f"{error.strerror}: {shorten(error.filename)}; type another path"
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder does not exist any more; change to another one"
    if isinstance(error, RuntimeError) and str(error) == NO_HOME:
        return "a path begins with ~ and no user of this machine; type it without ~"
    if _is_out_of_memory(error):
        return f"{OUT_OF_MEMORY}; {FEWER_TOKENS if has_data else 'end other programs on it, or type target.device=cpu'}"
    # Libraries that call our code raise their own error `from` ours.
    return message_line(error.__cause__, writing, resumes, has_data) if error.__cause__ else None


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether a device lacked memory; imports no torch, whose error it is."""
    error_class = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    return isinstance(error, error_class)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _flatten(error: BaseException) -> str:
    """The message in one line, without control characters, because it may quote files of unknown origin."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", re.sub(r"\s*[\r\n]+\s*", " ", str(error).strip()))


def _drop_stdout_if_full() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        drop_stdout()


def drop_stdout() -> None:
    """Replace stdout, so that the interpreter's flush at exit does not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until the process ends
