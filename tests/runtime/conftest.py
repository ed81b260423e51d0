"""Fixtures of runtime tests."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import replace

from hermes import Config
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.store import open_store
from hermes.testing import CountingBuilder, MemoryAdapter, RecordingHook, inline
from hermes.texts import ENGLISH
from tests.support.chat import Chat, access_for
from tests.support.compression import SMALL, RecordingAgent, ScriptedCompressor
from tests.support.engines import on_both_engines
from tests.support.other_process import start_other_process
from tests.support.runtime import SECONDS
from tests.support.store_proxy import Proxy

ON_POSTGRES = {
    "test_session_id_persistence",
    "test_lazy_sessions",
    "test_cache_coherence",
    "test_runtime_boundaries",
    "test_compression_races",
    "test_foreign_writes",
    "test_recovery",
    "test_repeated_turns",
}
"""The modules that `make test` runs on PostgreSQL too, in a minute; `make prove` runs all."""


def pytest_generate_tests(metafunc):
    on_both_engines(metafunc, ON_POSTGRES.__contains__)


@pytest.fixture
def start_proxy(path, world):
    """Open a runtime whose store has replaced verbs: `async with start_proxy(answer=function)`."""

    @asynccontextmanager
    async def opened(
        build_agent=None,
        config=None,
        adapters=(),
        access=None,
        compressor=None,
        transcriber=None,
        texts=ENGLISH,
        **verbs,
    ):
        async with (
            open_store(path, clock=world.clock, open_worker=inline()) as store,
            open_actors(
                Proxy(store, **verbs),
                build=CountingBuilder() if build_agent is None else build_agent,
                agent_spec=default_spec,
                config=config or Config(),
                adapters=adapters,
                access=access,
                compressor=compressor,
                transcriber=transcriber,
                texts=texts,
                wall=world.clock.wall,
            ) as runtime,
        ):
            yield runtime

    return opened


@pytest.fixture
def recorder():
    """Hooks that record their calls."""
    return RecordingHook()


@pytest.fixture
def start_with_store(path, world, workers):
    """Open a store and a runtime on it: `async with start_with_store() as (store, runtime)`.

    `behind` wraps the store that the runtime gets, for example in a `Through`.
    """

    @asynccontextmanager
    async def opened(
        *,
        build=None,
        config=None,
        compressor=None,
        adapters=(),
        behind=lambda store: store,
        finalized=None,
        **options,
    ):
        if workers == "inline":
            options.setdefault("open_worker", inline())
        if finalized is not None:
            options["hooks"] = {"on_session_finalize": [finalized.named("finalize")]}
        async with (
            open_store(path, clock=world.clock, **options) as store,
            open_actors(
                behind(store),
                build=CountingBuilder() if build is None else build,
                agent_spec=default_spec,
                config=config or Config(),
                compressor=compressor,
                adapters=adapters,
                wall=world.clock.wall,
            ) as runtime,
        ):
            yield store, runtime

    return opened


@pytest.fixture
def chat(start):
    """Open a runtime with access control and a platform: `async with chat(access) as here`."""
    two_users = access_for(users=["1", "2"])

    @asynccontextmanager
    async def opened(access=two_users, **options):
        adapter = MemoryAdapter("telegram")
        with trio.fail_after(10 * SECONDS):  # tests move the clock
            async with start(adapters=[adapter], access=access, **options) as runtime:
                yield Chat(runtime, adapter)

    return opened


@pytest.fixture(scope="session")
def other_process():
    """Another process that uses the same file."""
    with start_other_process() as process:
        yield process


@pytest.fixture
def in_other_process(path, other_process):
    """Change a session in another process: `in_other_process(session_id, code)`."""
    return functools.partial(other_process.run, path)


@pytest.fixture
def small(start):
    """Open a runtime with a small context window."""

    def opened(**options):
        compression = replace(SMALL, **options.pop("compression", {}))
        options.setdefault("config", Config(compression=compression))
        options.setdefault("compressor", ScriptedCompressor())
        return start(**options)

    return opened


@pytest.fixture
def small_behind(start_with_store):
    """Open a runtime with a small context window on a store in a proxy."""

    @asynccontextmanager
    async def opened(behind, **options):
        options.setdefault("build", CountingBuilder(lambda _: RecordingAgent()))
        config = Config(compression=SMALL)
        async with start_with_store(behind=behind, config=config, **options) as (_, runtime):
            yield runtime

    return opened
