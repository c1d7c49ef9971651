"""Every error that a user can cause; the command line prints it as one line and exits with 2, or 1."""

from __future__ import annotations


class DrafterforgeError(Exception):
    """A mistake of the user's, or of their data: what was found, what was wanted, what to type."""


class CheckFailedError(DrafterforgeError):
    """No mistake of the user's: what was measured is not as it has to be.  The command line exits with 1."""


class ConfigError(DrafterforgeError):
    """A command, group, key or value that the configuration does not know."""


class ArtifactError(DrafterforgeError):
    """A file or folder that is missing, damaged, or made for something else."""


class PromptTooLongError(DrafterforgeError):
    """A prompt that leaves the target no room for an answer."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does.  The command line exits with 143, for Ctrl-C with 130."""


def quote(value: object, most: int = 100) -> str:
    """`value` as Python writes it, cut; errors quote what others wrote through this or `shorten`."""
    return shorten(repr(value), most)


def shorten(value: object, most: int = 100) -> str:
    """`value` as one line of at most `most` printable characters."""
    text = str(value)
    text = " ".join("".join(char if char.isprintable() else " " for char in text[: 10 * most]).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
