"""A chat in the terminal, or through pipes: a line in, an answer out."""

from __future__ import annotations

from typing import TextIO

import attrs
import trio

from hermes.actors.runtime import Runtime
from hermes.errors import Draining, HermesError, StoreFailed
from hermes.events import TextDelta, TurnEnded
from hermes.messages import Source

MAX_LINE = 1_000_000
SOURCE = Source(platform="console", chat_id="console", user_id="operator")


@attrs.define
class Console:
    """Reads lines until the end of the input; each is a message or a command."""

    runtime: Runtime
    session_key: str
    prompt: str
    lines: TextIO
    answers: TextIO
    failed: bool = False

    async def run(self) -> bool:
        """Chat until the input ends; says whether every turn was answered."""
        while True:
            self._say(self.prompt)
            line = await trio.to_thread.run_sync(
                self.lines.readline, MAX_LINE, abandon_on_cancel=True
            )
            if not line:
                return not self.failed
            if line.strip():
                await self._turn(line.strip())

    async def _turn(self, text: str) -> None:
        try:
            await self._answer(text)
        except (StoreFailed, Draining):
            raise
        except (HermesError, ValueError) as error:
            self.failed = True
            self._say(f"That was not taken: {error}\n")

    async def _answer(self, text: str) -> None:
        begun = ""
        async with self.runtime.stream(self.session_key, text, source=SOURCE) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    begun += event.text
                    self._say(event.text)
                elif isinstance(event, TurnEnded):
                    self.failed = self.failed or event.reply.status == "failed"
                    self._say(f"{_rest(event.reply.text, begun)}\n")

    def _say(self, text: str) -> None:
        self.answers.write(text)
        self.answers.flush()


def _rest(text: str, begun: str) -> str:
    """What of a reply was not shown while it came."""
    if begun.endswith(text):  # its last part, after what was said before a tool
        return ""
    return text.removeprefix(begun) if text.startswith(begun) else f"\n{text}"
