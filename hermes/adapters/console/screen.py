"""What a console needs of a screen: a terminal, or plain text."""

from __future__ import annotations

from typing import Protocol

from hermes.adapters.console.activity import Activity


class Screen(Protocol):
    """Shows text; it sanitizes whatever it is given."""

    @property
    def columns(self) -> int:
        """The width of a line."""
        ...

    async def stream(self, text: str) -> None:
        """Show the next piece of an answer, which is Markdown."""
        ...

    async def finish(self) -> None:
        """End the answer."""
        ...

    async def show(self, text: str, *, markdown: bool = False) -> None:
        """Show a separate text, also in the middle of an answer, which continues after it."""
        ...

    async def note(self, text: str) -> None:
        """Show something that is not part of the conversation; to people, not to programs."""
        ...

    async def alert(self, text: str) -> None:
        """Show something the user must know, separately from the answers; also in a pipeline."""
        ...

    async def echo(self, text: str) -> None:
        """Show a message of the operator, if the terminal has not done so by itself."""
        ...

    async def update(self, activity: Activity) -> None:
        """Show what is going on."""
        ...
