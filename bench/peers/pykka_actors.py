"""Pykka 4.5.0: an actor is a thread with a queue."""

from __future__ import annotations

import os
from importlib.metadata import version

import pykka

from bench.harness.driver import Figures, ask_blocking, serve


class Adder(pykka.ThreadingActor):
    def on_receive(self, message: int) -> int:
        return message + 1


def ask(count: int) -> Figures:
    """Run on one core: with two, waking the other thread is three to four times slower."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:1])
    adder = Adder.start()
    try:
        return ask_blocking(adder.ask, count)
    finally:
        adder.stop()
        os.sched_setaffinity(0, allowed)


if __name__ == "__main__":
    serve({"pykka": version("pykka")}, ask)
