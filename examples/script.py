"""A runtime inside a synchronous program, used from several threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import hermes


async def reply(turn: hermes.Turn) -> str:
    return f"{turn.text} has {len(turn.text)} letters"


def main(path: str) -> None:
    with hermes.embed.start_runtime(path, agent=reply) as runtime:
        with ThreadPoolExecutor(4) as threads:
            words = ["heron", "kite", "crane", "osprey"]
            answers = threads.map(lambda word: runtime.ask(f"example:{word}", word), words)
            print("\n".join(answer.text for answer in answers))
        history = runtime.conversation("example:heron").history()
        print(f"{len(history)} messages are stored for example:heron")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example.db")
