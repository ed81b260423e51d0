"""An agent that measures an image and answers with a file."""

from __future__ import annotations

import base64
import sys

import trio

import hermes

# A PNG image of one pixel.
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


async def reply(turn: hermes.Turn) -> str | hermes.TurnResult:
    parts = [part for message in turn.input for part in message.parts or ()]
    files = [await turn.open_file(part["file"]) for part in parts if "file" in part]
    images = [reader for reader in files if reader.file.type == "image"]
    if not images:
        return "Please send me an image."
    image, signature = images[0].file, await images[0].read(0, 4)
    report = f"{image.name}: {image.media_type}, {image.size} bytes, begins with {signature!r}\n"
    return hermes.TurnResult(
        text=f"{image.name} is {image.width} x {image.height} pixels.",
        files=[hermes.Attachment(data=report.encode(), name="report.txt")],
    )


async def main(path: str) -> None:
    async with hermes.open_runtime(path, agent=reply) as runtime:
        chat = runtime.conversation("example:anna")
        print((await chat.ask("What is this?")).text)
        image = hermes.Attachment(data=DOT, name="dot.png")
        answer = await chat.ask("And this?", attachments=[image])
        print(answer.text)
        for file in answer.files:
            print(f"{file.name}: {(await chat.read_file(file.id)).decode()}", end="")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "example.db")
