"""Errors that the command line prints as one line, with exit code 2 (`CheckFailedError`: 1)."""

from __future__ import annotations


class DrafterforgeError(Exception):
    """A mistake in a command or in data; the message says what was found, what was expected and what to type.

    A suggested command is in backticks, without target and runs folder, which the command line adds: `config.hints`.
    """


class CheckFailedError(DrafterforgeError):
    """A check of measured figures failed, without a mistake of the user's; the command line exits with 1."""


class ConfigError(DrafterforgeError):
    """An unknown command, group or key, or an invalid value."""


class ArtifactError(DrafterforgeError):
    """A file or folder that is missing, damaged, or made for another target."""


class ChatTemplateError(ArtifactError):
    """Messages that the target's chat template refuses."""


class ServerError(DrafterforgeError):
    """A server of another program that does not start, or that stops answering."""


class PromptTooLongError(DrafterforgeError):
    """A prompt that leaves the target no room for an answer."""


class RankLostError(DrafterforgeError):
    """Another process of the same training ended, which prints the reason."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does; the command line exits with 143 instead of 130."""


def quote(value: object, max_chars: int = 100) -> str:
    """The shortened `repr` of `value`; errors include untrusted text only through this or `shorten`."""
    return shorten(repr(value), max_chars)


def shorten(value: object, max_chars: int = 100) -> str:
    """`value` as one line of at most `max_chars` printable characters."""
    text = str(value)
    text = " ".join("".join(char if char.isprintable() else " " for char in text[: 10 * max_chars]).split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."
