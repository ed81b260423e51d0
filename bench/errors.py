"""The two ways in which a command fails with a sentence instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """The request cannot be fulfilled. The text is a sentence for the user; exit code 2."""


class DriverFailed(Exception):
    """A driver exited, timed out or reported an error; exit code 1."""
