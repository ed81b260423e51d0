"""A real store behind a proxy, so that a test can delay, fail or observe its verbs."""

from __future__ import annotations

import functools

import trio

from hermes.store.cluster.alone import Alone


class Through:
    """A proxy that passes everything to the real store; subclasses override verbs."""

    def __init__(self, store, **attributes):
        self.__dict__.update(store=store, **attributes)

    @property
    def cluster(self):
        return Alone(self)

    def held(self, claim, on_lost):
        return self

    def acting(self, role):
        return self

    def __getattr__(self, name):
        return getattr(self.store, name)

    def __setattr__(self, name, value):
        setattr(self.store, name, value)


class Proxy(Through):
    """A proxy with replaced verbs: functions that get the real verb as their first argument."""

    def __init__(self, store, **verbs):
        super().__init__(store, _verbs=verbs)

    def __getattr__(self, name):
        real, verb = super().__getattr__(name), self._verbs.get(name)
        return real if verb is None else functools.partial(verb, real)


class HoldFirst:
    """A replaced verb whose first call does not return before `release` is set."""

    def __init__(self):
        self.entered = trio.Event()
        self.release = trio.Event()

    async def __call__(self, real, *args, **kwargs):
        result = await real(*args, **kwargs)
        if not self.entered.is_set():
            self.entered.set()
            await self.release.wait()
        return result
