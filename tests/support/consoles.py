"""Consoles for tests in the same process."""

from __future__ import annotations

import os

from hermes.adapters.console import Console


class Piped(Console):
    """A console with its own pipes."""

    def __init__(self):
        stdin, self.to = os.pipe()
        self.read_from, stdout = os.pipe()
        super().__init__(session_key="k", stdin=stdin, stdout=stdout)

    def with_input(self, text):
        """Write the input and close it."""
        os.write(self.to, text.encode())
        os.close(self.to)
        return self

    def output(self):
        """Close the console; returns everything that it has written."""
        os.close(self.stdout)
        os.close(self.stdin)
        with os.fdopen(self.read_from, "rb") as file:
            return file.read().decode()


class RecordingScreen:
    """A screen that records what was shown, and the notes."""

    def __init__(self):
        self.texts, self.notes = [], []

    async def show(self, text, *, markdown=False):
        self.texts.append(text)

    async def note(self, text):
        self.notes.append(text)

    async def finish(self):
        pass

    async def update(self, activity):
        pass
