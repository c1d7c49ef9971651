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
