"""The real store with something in front of it, and a runtime on that."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager

import pytest

from hermes import Config
from hermes.actors.runtime import running
from hermes.embed.trio_host import plain_description
from hermes.store import inline, open_store
from hermes.testing import CountingBuilder


class Through:
    """The real store, seen through this; what a subclass has stands in front of it."""

    def __init__(self, store, **parts):
        self.__dict__.update(store=store, **parts)

    def __getattr__(self, name):
        return getattr(self.store, name)

    def __setattr__(self, name, value):
        setattr(self.store, name, value)


class Proxy(Through):
    """The real store, with some of its verbs in the hands of a test."""

    def __init__(self, store, **verbs):
        super().__init__(store, _verbs=verbs)

    def __getattr__(self, name):
        real, verb = super().__getattr__(name), self._verbs.get(name)
        return real if verb is None else functools.partial(verb, real)


@pytest.fixture
def start_proxy(path, world):
    """`start`, with verbs of the store replaced by functions that are given the real one."""

    @asynccontextmanager
    async def opened(agent=None, config=None, adapters=(), admission=None, **verbs):
        async with (
            open_store(path, clock=world.clock, open_worker=inline()) as store,
            running(
                Proxy(store, **verbs),
                build=CountingBuilder() if agent is None else agent,
                describe=plain_description,
                config=config or Config(),
                adapters=adapters,
                admission=admission,
                wall=world.clock.wall,
            ) as runtime,
        ):
            yield runtime

    return opened
