"""Pykka 4.5.0: an actor with a thread and a queue of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from time import perf_counter

import pykka

from bench.peers import messaging
from bench.peers.wire import Figures, serve


class Adder(pykka.ThreadingActor):
    def on_receive(self, message: int) -> int:
        return message + 1


class Counter(pykka.ThreadingActor):
    """Sets `done` when it has processed so many messages."""

    def __init__(self, count: int, done: threading.Event) -> None:
        super().__init__()
        self.count = count
        self.done = done
        self.processed = 0

    def on_receive(self, message: int) -> int:
        self.processed += 1
        if self.processed == self.count:
            self.done.set()
        return message + 1


@contextmanager
def limited_to(cores: int) -> Iterator[None]:
    """Threads started in the block share so many cores.

    Two threads that take turns win nothing by a second core: waking it makes an ask three to four
    times slower, and whether they land on one core or on two is chance. One core is kinder.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def ask(count: int, cores: int = 1) -> Figures:
    with limited_to(cores):
        adder = Adder.start()
        try:
            return messaging.asked_blocking(adder.ask, count)
        finally:
            adder.stop()


def tell(count: int, cores: int = 1) -> Figures:
    """Until the last message is processed."""
    done = threading.Event()
    with limited_to(cores):
        counter = Counter.start(count, done)
        started = perf_counter()
        for number in range(count):
            counter.tell(number)
        done.wait()
        seconds = perf_counter() - started
        messaging.check(count, counter.proxy().processed.get())
        counter.stop()
    return messaging.figures(count, seconds)


if __name__ == "__main__":
    serve({"pykka": version("pykka")}, {"ask": ask, "tell": tell})
