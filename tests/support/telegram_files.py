"""Agents that read and send files, for tests of Telegram."""

from __future__ import annotations

import struct

import attrs
import trio

from hermes import Attachment, TurnResult

PNG = (
    b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 40, 30, 8, 2, 0, 0, 0) + b"rest"
)
"""The start of a picture, which is enough to recognize it."""


@attrs.define
class Reader:
    """An agent that notes the texts and the files of each turn."""

    turns: list = attrs.Factory(list)

    async def run(self, turn):
        texts = [message.content or "" for message in turn.input]
        files = []
        for message in turn.input:
            for part in message.parts or ():
                if "file" in part:
                    content = await (await turn.open_file(part["file"])).read()
                    files.append((part["type"], part.get("name"), content))
        self.turns.append((texts, files))
        return f"{len(files)} files"

    async def wait(self, number=1):
        """The turns, once there are this many."""
        while len(self.turns) < number:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)
        return self.turns


def sender(*attachments, text=""):
    """An agent that answers with these files."""

    async def send(turn):
        return TurnResult(text=text, files=[Attachment(**each) for each in attachments])

    return send


def blobs(path):
    """All files below the folder of the blobs."""
    folder = path.with_name(f"{path.name}.blobs")
    return sorted(each for each in folder.rglob("*") if each.is_file())
