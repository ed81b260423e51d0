"""Stores for tests: a clock that a test moves, and the same store opened in three ways."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager

from hermes.store import Clock, SessionStore, open_store
from hermes.testing import inline

KINDS = ("sync", "threads", "inline")


class World:
    """Time and randomness, controlled by a test."""

    def __init__(self):
        self.now = 1_800_000_000.0
        self.steady = 5_000.0
        self.minted = 0

    def pass_time(self, seconds):
        self.now += seconds
        self.steady += seconds

    def hex8(self):
        self.minted += 1
        return f"{self.minted:08x}"

    @property
    def clock(self):
        return Clock(wall=lambda: self.now, steady=lambda: self.steady, hex8=self.hex8)


class AwaitedStore:
    """A `SessionStore` whose verbs are awaited, so that one test serves all kinds of store."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        @functools.wraps(verb)
        async def awaited(*args, **kwargs):
            return verb(*args, **kwargs)

        return awaited


@asynccontextmanager
async def open_kind(kind, path, *, opened=SessionStore, **options):
    """Open the store at `path`: synchronous, asynchronous in threads, or asynchronous inline.

    `opened` is the class of a synchronous store.
    """
    if kind == "sync":
        with opened(path, **options) as store:
            yield AwaitedStore(store)
    else:
        if kind == "inline":
            options.setdefault("open_worker", inline())
        async with open_store(path, **options) as store:
            yield store
