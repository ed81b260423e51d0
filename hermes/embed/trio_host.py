"""A runtime inside a Trio program."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs

from hermes.actors.admission.access import AccessPolicy
from hermes.actors.runtime import Runtime, running
from hermes.config import Config
from hermes.messages import AgentSpec, Hooks, Source, TurnResult
from hermes.protocols import Adapter, Build, Compressor, Describe, Titler, Turn
from hermes.redaction.keys import Redact
from hermes.store import Clock, open_store
from hermes.store.actor import SWEEP_INTERVAL
from hermes.store.hooks import HOOK_TIMEOUT
from hermes.store.worker import OpenWorker, open_in_thread

ReplyFunction: TypeAlias = Callable[[Turn], Awaitable[str | TurnResult]]


@attrs.frozen
class ReplyAgent:
    """The simplest agent: a coroutine function from a turn to a text."""

    reply: ReplyFunction

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer with what the function returns."""
        answer = await self.reply(turn)
        return TurnResult(text=answer) if isinstance(answer, str) else answer


def builder_of(agent: Build | ReplyFunction) -> Build:
    """A builder, whichever of the two it is: `build(spec)` makes agents, `reply(turn)` is one."""
    if not callable(agent):
        raise TypeError("agent must be a function: build(spec) -> Agent, or async reply(turn)")
    if not inspect.iscoroutinefunction(agent):
        return agent  # type: ignore[return-value]
    first = next(iter(inspect.signature(agent).parameters.values()), None)
    if first is not None and (first.name == "spec" or first.annotation in {AgentSpec, "AgentSpec"}):
        return agent  # type: ignore[return-value]
    return lambda _: ReplyAgent(agent)  # type: ignore[arg-type]


def plain_description(session_key: str, source: Source) -> AgentSpec:
    """An agent that is told who it speaks with, and nothing else."""
    return AgentSpec(session_key=session_key, platform=source.platform, user_id=source.user_id)


@asynccontextmanager
async def open_runtime(  # noqa: PLR0913 - the parts of a runtime
    path: str | os.PathLike[str],
    *,
    agent: Build | ReplyFunction,
    describe: Describe = plain_description,
    hooks: Hooks | None = None,
    config: Config | None = None,
    compressor: Compressor | None = None,
    titler: Titler | None = None,
    adapters: Iterable[Adapter] = (),
    admission: AccessPolicy | None = None,
    redact: Redact | None = None,
    clock: Clock | None = None,
    hook_timeout: float = HOOK_TIMEOUT,
    sweep_interval: float = SWEEP_INTERVAL,
    open_worker: OpenWorker = open_in_thread,
    **store_options: Any,
) -> AsyncIterator[Runtime]:
    """A runtime on the file at `path`, in a Trio program; leaving the block drains it."""
    build = builder_of(agent)
    clock = clock or Clock()
    async with (
        open_store(
            path,
            hooks=hooks,
            clock=clock,
            hook_timeout=hook_timeout,
            sweep_interval=sweep_interval,
            open_worker=open_worker,
            **store_options,
        ) as store,
        running(
            store,
            build=build,
            describe=describe,
            config=config or Config(),
            compressor=compressor,
            titler=titler,
            adapters=adapters,
            admission=admission,
            redact=redact,
            wall=clock.wall,
        ) as runtime,
    ):
        yield runtime
