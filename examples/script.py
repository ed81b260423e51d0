"""A plain synchronous script with a runtime inside, used from several threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from hermes.embed import start_runtime


async def reply(turn):
    return f"{turn.text} has {len(turn.text)} letters"


def main(path):
    with start_runtime(path, agent=reply) as runtime:
        print(runtime.ask("example:emil", "heron").text)
        with ThreadPoolExecutor(4) as threads:
            words = ["kite", "crane", "stork", "osprey"]
            answers = threads.map(lambda word: runtime.ask(f"example:{word}", word).text, words)
            print("\n".join(answers))
        print(f"{len(runtime.history('example:emil'))} messages are stored for emil")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example.db")
