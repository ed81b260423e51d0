"""Races on PostgreSQL: calls on several connections, started together with random delays.

A race is a generator function of a store and a number, which is another one in each round. It
prepares its rows, yields the calls, gets their results, and returns a `Finding`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeAlias

import attrs

from hermes.store import SessionStore

LONGEST_DELAY = 0.01
"""Some statements long; so calls overlap in some rounds, and follow each other in others."""
PATIENCE = 30
"""How many times as many rounds may be needed until every order has occurred."""


@attrs.frozen
class Result:
    """What a call returned or raised."""

    value: Any = None
    error: Exception | None = None


@attrs.frozen
class Finding:
    """Which call came first, as far as the database shows, and what is wrong."""

    order: str
    violations: list[str] = attrs.Factory(list)


Call: TypeAlias = Callable[[SessionStore], object]
Round: TypeAlias = Generator[Sequence[Call], list[Result], Finding]


@attrs.frozen
class Race:
    """`start` begins a round; `orders` are those that must occur."""

    name: str
    start: Callable[[SessionStore, int], Round]
    orders: frozenset[str]


class Racers:
    """Connections to one database, each used by one thread."""

    def __init__(self, url: str, number: int = 6, *, kind: type[SessionStore] = SessionStore):
        self.url = url
        self._closing = ExitStack()
        self._stores = [self._closing.enter_context(kind(url)) for _ in range(number)]
        self._threads = self._closing.enter_context(ThreadPoolExecutor(number))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.close()

    def run(self, calls: Sequence[Call], delays: Sequence[float]) -> list[Result]:
        """Make each call on its own connection, after its delay; return the results."""
        gate = threading.Barrier(len(calls))
        jobs = [
            self._threads.submit(_call, gate, store, call, delay)
            for store, call, delay in zip(self._stores, calls, delays, strict=False)
        ]
        return [job.result() for job in jobs]


def _call(gate, store, call, delay) -> Result:
    gate.wait(30)
    time.sleep(delay)  # nothing is waited for: the delays are what varies
    try:
        return Result(call(store))
    except Exception as error:  # noqa: BLE001 - judged by the race
        return Result(error=error)


@attrs.define
class Outcome:
    """What a number of rounds found."""

    violations: list[str] = attrs.Factory(list)
    orders: Counter[str] = attrs.Factory(Counter)
    rounds: int = 0


def run(race: Race, racers: Racers, judge: SessionStore, rounds: int, seed: int) -> Outcome:
    """Run a race so many times, and then until each of its orders has occurred.

    Ends with the first round that shows a violation.
    """
    chance, found = random.Random(f"{race.name} {seed}"), Outcome()
    while found.rounds < rounds or (
        race.orders - set(found.orders) and found.rounds < PATIENCE * rounds
    ):
        finding = _run_once(race, racers, judge, found.rounds, chance)
        found.orders[finding.order] += 1
        found.rounds += 1
        if finding.violations:
            where = f"{race.name}, seed {seed}, round {found.rounds}, {finding.order}"
            found.violations = [f"{where}: {text}" for text in finding.violations]
            return found
    if missing := race.orders - set(found.orders):
        found.violations = [f"{race.name}: never {', '.join(sorted(missing))}"]
    return found


def _run_once(race, racers, judge, number, chance) -> Finding:
    round_ = race.start(judge, number)
    calls = next(round_)
    longest = chance.choice([0, LONGEST_DELAY / 10, LONGEST_DELAY])
    delays = [chance.uniform(0, longest) for _ in calls]
    try:
        round_.send(racers.run(calls, delays))
    except StopIteration as done:
        return done.value
    raise AssertionError(f"{race.name} yielded twice")


def errors(results: Sequence[Result], *allowed: type[Exception]) -> list[str]:
    """Return the errors that are none of the allowed ones."""
    return [
        f"{type(each.error).__name__}: {each.error}"
        for each in results
        if each.error is not None and not isinstance(each.error, allowed)
    ]


def first_of(results: Sequence[Result]) -> str:
    """Return whether the first call of several won, which are those with a true value."""
    winners = [number for number, each in enumerate(results) if each.value]
    return "the first call won" if winners[:1] == [0] else "another call won"


def exactly(number: int, results: Sequence[Result], what: str) -> list[str]:
    """Return a violation unless exactly so many calls returned a true value."""
    found = sum(bool(each.value) for each in results)
    return [] if found == number else [f"{found} calls {what} instead of {number}"]
