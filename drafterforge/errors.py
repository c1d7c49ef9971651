"""Every error that a user can cause; the command line prints it as one line and exits with 2."""

from __future__ import annotations


class DrafterforgeError(Exception):
    """A mistake of the user's, or of their data: what was found, what was wanted, what to type."""


class ConfigError(DrafterforgeError):
    """A command, group, key or value that the configuration does not know."""


class ArtifactError(DrafterforgeError):
    """A file or folder that is missing, damaged, or made for something else."""


class PromptTooLongError(DrafterforgeError):
    """A prompt that leaves the target no room for an answer."""
