"""What `agent=` and `build_agent=` accept."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import trio

from hermes.config import Config
from hermes.messages import AgentSpec, Source, TurnResult
from hermes.protocols import Agent, Build, SupportsAbandon, SupportsAclose, Turn

_POLL_SECONDS = 0.05

ReplyFunction: TypeAlias = Callable[[Turn], Awaitable[str | TurnResult]]
"""The simplest agent: an async function from a turn to a text."""


@attrs.frozen
class ReplyAgent:
    """An agent made of an async function."""

    reply: ReplyFunction

    async def run(self, turn: Turn, /) -> TurnResult:
        """Return what the function returns."""
        answer = await self.reply(turn)
        return TurnResult(text=answer) if isinstance(answer, str) else answer


@runtime_checkable
class SupportsSharing(Protocol):
    """An agent with a separate form for each conversation, which may abandon it separately."""

    def for_conversation(self) -> Agent:
        """Return the agent as one conversation uses it; it is closed with the original."""
        ...


@attrs.define(eq=False)
class SharedAgent:
    """An agent of all conversations, as one of them uses it: never for two turns at once.

    It has no `aclose`: the agent is closed with the runtime.
    """

    agent: Agent
    _grace_period: float
    _left: dict[str, SupportsAbandon]
    """What still runs after its turn was given up, by session_key; for all conversations."""
    abandoned: bool = attrs.field(init=False, default=False)
    """Whether work of its last turn was still running when that ended."""

    async def run(self, turn: Turn, /) -> TurnResult:
        """Return what the agent returns.

        If an abandoned turn of the conversation still runs, wait for it. The turn fails if that
        takes longer than the grace period.
        """
        key, agent = turn.session_key, self.agent
        if key in self._left and not await _ended(self._left[key], self._grace_period):
            error = turn.runtime.texts.still_running
            return TurnResult(failed=True, error=error, api_calls=0)
        self._left.pop(key, None)
        try:
            return await agent.run(turn)
        finally:
            self.abandoned = isinstance(agent, SupportsAbandon) and agent.abandoned
            if isinstance(agent, SupportsAbandon) and self.abandoned:
                self._left[key] = agent


async def _ended(left: SupportsAbandon, seconds: float) -> bool:
    """Wait until no abandoned work runs; False if that takes longer than `seconds`."""
    with trio.move_on_after(seconds):
        while left.abandoned:  # noqa: ASYNC110 - agents have no event for it
            await trio.sleep(_POLL_SECONDS)
    return not left.abandoned


def builder_for(
    agent: Agent | ReplyFunction | None, build_agent: Build | None, config: Config
) -> Build:
    """Return a builder for the two arguments. Raises `TypeError` unless exactly one is valid."""
    if (agent is None) == (build_agent is None):
        raise TypeError("pass exactly one of agent= and build_agent=")
    if build_agent is not None:
        given: object = build_agent
        if not callable(given) or (_has_run(given) and not inspect.isclass(given)):
            raise TypeError(
                "build_agent must be a function from an AgentSpec to an agent; "
                "pass an agent object as agent="
            )
        return build_agent
    shared = as_agent(agent)
    left: dict[str, SupportsAbandon] = {}
    if isinstance(shared, SupportsSharing):
        sharing = shared
        return lambda _: SharedAgent(sharing.for_conversation(), config.grace_period, left)
    if isinstance(shared, SupportsAclose | SupportsAbandon):
        return lambda _: SharedAgent(shared, config.grace_period, left)
    return lambda _: shared


def as_agent(agent: object) -> Agent:
    """Return the value of `agent=` as an agent. Raises `TypeError` if it is none."""
    if inspect.isclass(agent):
        raise TypeError(
            f"agent must be an object, not the class {agent.__name__}; "
            "pass an instance, or a function that makes one as build_agent="
        )
    if _has_run(agent):
        run: Any = agent.run  # type: ignore[attr-defined]
        if not inspect.iscoroutinefunction(run):
            raise TypeError(
                "agent.run must be an async function; pass a blocking one as "
                "build_agent=hermes.agents.blocking_agent(function)"
            )
        return agent  # type: ignore[return-value]
    if _is_async(agent):
        return ReplyAgent(agent)  # type: ignore[arg-type]
    raise TypeError(
        "agent must be an object with async run(turn), or an async function of a turn; "
        "pass a function that builds agents as build_agent="
    )


def _has_run(value: object) -> bool:
    return callable(getattr(value, "run", None))  # a user's object, not checked before


def _is_async(value: object) -> bool:
    return callable(value) and (
        inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__)
    )


def default_spec(session_key: str, source: Source) -> AgentSpec:
    """Return a specification with the conversation partner and nothing else."""
    return AgentSpec(session_key=session_key, platform=source.platform, user_id=source.user_id)
