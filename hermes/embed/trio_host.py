"""A runtime inside a Trio program."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias, TypedDict

from hermes.actors.admission.access import AccessPolicy
from hermes.actors.runtime import Runtime, open_actors
from hermes.actors.session.agent_cache import close_agent
from hermes.background import protected
from hermes.config import MAX_WAL_BYTES, AttachmentLimits, Config
from hermes.embed.agent import ReplyFunction, builder_for, default_spec
from hermes.embed.transcriber import TranscribeFunction, as_transcriber
from hermes.messages import CallRows, Hooks, RecordedCall
from hermes.protocols import (
    Adapter,
    Agent,
    AgentCatalog,
    Build,
    Compressor,
    Describe,
    FileReader,
    HasLocal,
    SupportsAclose,
    Titler,
    Transcriber,
)
from hermes.redaction import Redact
from hermes.store import Clock, open_store
from hermes.store.actor import SWEEP_INTERVAL
from hermes.store.engine import OpenWorker
from hermes.store.hooks import HOOK_TIMEOUT
from hermes.texts import ENGLISH, Texts
from hermes.texts.checks import require_usable


class RuntimeOptions(TypedDict, total=False):
    """The keyword arguments of `open_runtime`, which documents them."""

    agent: Agent | ReplyFunction | None
    build_agent: Build | None
    agent_spec: Describe
    hooks: Hooks | None
    config: Config | None
    compressor: Compressor | None
    titler: Titler | None
    transcriber: Transcriber | TranscribeFunction | None
    adapters: Iterable[Adapter]
    access: AccessPolicy | None
    redact: Redact | None
    texts: Texts
    catalog: AgentCatalog | None
    clock: Clock | None
    hook_timeout: float
    sweep_interval: float
    force: bool
    open_worker: OpenWorker | None
    vfs: str | None


Setup: TypeAlias = Callable[[], AbstractAsyncContextManager[RuntimeOptions]]
"""Opens parts of a runtime on its own loop, for the time that it is open; yields options."""


@asynccontextmanager
async def enter_setup(
    setup: Setup | None, options: RuntimeOptions
) -> AsyncIterator[RuntimeOptions]:
    """Enter `setup` and yield its options. Raises `TypeError` if `options` has one of them too."""
    if setup is None:
        yield {}
        return
    async with setup() as more:
        if twice := sorted(options.keys() & more.keys()):
            raise TypeError(f"{twice[0]} is both an argument and an option of setup")
        yield more


@asynccontextmanager
async def open_with_setup(
    path: str | os.PathLike[str], setup: Setup | None, options: RuntimeOptions
) -> AsyncIterator[Runtime]:
    """Open a runtime with these options and those of `setup`, which is closed after it.

    Raises `TypeError` if both have an option, and what `open_runtime` raises.
    """
    async with enter_setup(setup, options) as more:
        together: RuntimeOptions = {**options, **more}
        async with open_runtime(path, **together) as runtime:
            yield runtime


@protected
async def open_runtime(  # noqa: PLR0913 - the parts of a runtime
    path: str | os.PathLike[str],
    *,
    agent: Agent | ReplyFunction | None = None,
    build_agent: Build | None = None,
    agent_spec: Describe = default_spec,
    hooks: Hooks | None = None,
    config: Config | None = None,
    compressor: Compressor | None = None,
    titler: Titler | None = None,
    transcriber: Transcriber | TranscribeFunction | None = None,
    adapters: Iterable[Adapter] = (),
    access: AccessPolicy | None = None,
    redact: Redact | None = None,
    texts: Texts = ENGLISH,
    catalog: AgentCatalog | None = None,
    clock: Clock | None = None,
    hook_timeout: float = HOOK_TIMEOUT,
    sweep_interval: float = SWEEP_INTERVAL,
    force: bool = False,
    open_worker: OpenWorker | None = None,
    vfs: str | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime on a database. Leaving the block drains it.

    `path` is that of an SQLite file, or a URL of PostgreSQL (`postgresql://…`), which several
    runtimes may use.

    - `agent` answers all conversations: an object with `async run(turn)`, or an async function of
      a turn that returns a text.
    - `build_agent` builds an agent for each conversation instead, from its `AgentSpec`; plain or
      async.
    - `agent_spec` returns the `AgentSpec` for a session_key and the source of its message. If its
      signature changes, the agent is rebuilt.
    - `hooks` are called when sessions are finalized, reset or switched, by event name.
    - `config` has the limits and timeouts.
    - `compressor` summarizes long conversations; without one they are not compressed.
    - `titler` suggests titles for new conversations.
    - `transcriber` turns voice messages into text before their turn: an object with
      `transcribe(audio)`, or such a function, plain or async. Plain ones run in a thread.
    - `adapters` deliver replies to platforms.
    - `access` decides who may use the runtime. Without it the host decides, and all adapters must
      be local.
    - `redact` removes secrets from a text, before anything an agent says is stored or published.
    - `texts` replaces sentences that Hermes says to users, for example in another language.
    - `catalog` lists the agents that users may choose with `/model`, and their tools.
    - `clock` provides time and randomness, `open_worker` opens connections, and `vfs` is SQLite's
      interface to the file system; they are meant for tests.
    - `hook_timeout` limits each hook; `sweep_interval` is the time between maintenance runs.
    - `force` opens a database that `hermes store copy` has moved to another one.

    Raises `TypeError` if neither or both of `agent` and `build_agent` are given, or one of these or
    `transcriber` is of the wrong kind; `ValueError` if an adapter that is not local comes without
    `access`, or if a sentence in `texts` has an unknown placeholder; `StoreInUse` if another
    runtime owns the file; `StoreRefused` if it cannot be opened as a store; and `StoreFailed`, out
    of the block, if the store stops.
    """
    clock, config = clock or Clock(), _checked(config, texts)
    build, adapters = builder_for(agent, build_agent, config), _permitted(adapters, access)
    transcriber = as_transcriber(transcriber)
    stored = _store_options(config, hook_timeout, sweep_interval, open_worker, vfs)
    async with (
        open_store(path, hooks=hooks, clock=clock, force=force, **stored) as store,
        _closed_at_end(agent, config.close_timeout),
        open_actors(
            store,
            build=build,
            agent_spec=agent_spec,
            config=config,
            compressor=compressor,
            titler=titler,
            transcriber=transcriber,
            adapters=adapters,
            access=access,
            redact=redact,
            texts=texts,
            catalog=catalog,
            wall=clock.wall,
            rebuild_request=_rebuild_request,
        ) as runtime,
    ):
        yield runtime


async def _rebuild_request(
    call: RecordedCall, rows: CallRows, open_file: Callable[[str], Awaitable[FileReader]]
) -> bytes:
    from hermes.agents.calls import rebuilding  # noqa: PLC0415 - rarely needed

    return await rebuilding.rebuild_request(call, rows, open_file)


def _checked(config: object, texts: Texts) -> Config:
    """Return the configuration; refuse options that would fail later."""
    require_usable(texts)
    config = Config() if config is None else config
    if not isinstance(config, Config):
        raise TypeError(f"config must be a hermes.Config, not {config!r:.50}")
    return config


class _StoreOptions(TypedDict):
    hook_timeout: float
    sweep_interval: float
    max_wal_bytes: int | None
    limits: AttachmentLimits
    open_worker: OpenWorker | None
    vfs: str | None


def _store_options(
    config: Config,
    hook_timeout: float,
    sweep_interval: float,
    open_worker: OpenWorker | None,
    vfs: str | None,
) -> _StoreOptions:
    """Return what the store is told; refuse intervals that have no meaning."""
    for name, seconds in (("hook_timeout", hook_timeout), ("sweep_interval", sweep_interval)):
        given: object = seconds
        if not (isinstance(given, int | float) and given > 0):
            raise ValueError(f"{name} is a positive number of seconds, not {given!r:.50}")
    return {
        "hook_timeout": hook_timeout,
        "sweep_interval": sweep_interval,
        "max_wal_bytes": None if config.max_wal_bytes == MAX_WAL_BYTES else config.max_wal_bytes,
        "limits": config.attachments,
        "open_worker": open_worker,
        "vfs": vfs,
    }


def _permitted(adapters: Iterable[Adapter], access: AccessPolicy | None) -> Sequence[Adapter]:
    """Return the adapters; without an access policy, refuse those that strangers could reach."""
    adapters = list(adapters)
    for adapter in adapters if access is None else ():
        given: object = adapter
        if not (isinstance(given, HasLocal) and given.local):
            raise ValueError(
                f"the adapter of {adapter.platform!r} is not local: pass access=AccessPolicy(...) "
                "with the users it may answer, or access=AccessPolicy.everyone() for a public bot"
            )
    return adapters


@asynccontextmanager
async def _closed_at_end(agent: object, seconds: float) -> AsyncIterator[None]:
    """Close an agent that all conversations share, once, after the last of them."""
    try:
        yield
    finally:
        if isinstance(agent, SupportsAclose):
            await close_agent(agent, seconds)
