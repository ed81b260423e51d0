"""Runs the verbs of a conversation on the node that serves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
import trio

from hermes.actors.cluster.served import ServedHere
from hermes.actors.cluster.verbs import Verb, decode_verb, encode_verb
from hermes.actors.context import RuntimeContext
from hermes.actors.event_bus import EventBus
from hermes.actors.remote.calls import Call, CallOutcome
from hermes.actors.remote.errors import describe_error, make_error
from hermes.actors.remote.peers import Peers
from hermes.actors.session.actor import SessionActor
from hermes.errors import ActorStopped, HermesError, NotOwner
from hermes.messages import Claim
from hermes.protocols import Store
from hermes.sanitize import encodable
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

R = TypeVar("R")

MOVES: Final = 10
"""How often a conversation may move to another node while a verb looks for its owner."""


class Registry(Protocol):
    """The actors of a runtime."""

    def find(self, session_key: str, /) -> SessionActor | None: ...
    def actor(self, session_key: str, claim: Claim | None = None, /) -> SessionActor: ...


class _Moved(Exception):
    """Another node serves the conversation, and nothing was done."""


async def run_here(actor: SessionActor, verb: Verb[R]) -> R:
    """Run a verb with an actor of this node."""
    verb = verb.asked(actor.state.context)
    return await (actor.request(lambda: verb.run(actor)) if verb.waits else verb.run(actor))


async def run_anywhere(
    session_key: str, verb: Verb[R], context: RuntimeContext, registry: Registry
) -> R:
    """Run a verb on the node that serves a conversation; if none does, this one may from now on.

    Raises what the verb raises. Raises `ActorStopped` if its owner is lost while it runs the verb,
    unless the verb can be repeated.
    """
    for _ in range(MOVES):
        actor, claim = registry.find(session_key), None
        if actor is None:
            claim = await _owner(session_key, verb, context)
            if claim is None:  # nothing runs, so there is nothing to wait for
                return await verb.run(SessionActor(session_key, context))
            if claim.node == context.store.cluster.node:
                actor = registry.actor(session_key, claim)
        try:
            if actor is None and claim is not None:
                return await _call(claim, verb, context)
            if actor is not None:
                return await _run_owned(actor, verb)
        except _Moved:
            continue
    raise NotOwner(f"{session_key} went from node to node, and nothing was done; try again")


async def _owner(session_key: str, verb: Verb[Any], context: RuntimeContext) -> Claim | None:
    cluster = context.store.cluster
    return await (cluster.claim if verb.waits else cluster.owner_of)(session_key)


async def _run_owned(actor: SessionActor, verb: Verb[R]) -> R:
    """Run a verb with an actor, which may lose its conversation meanwhile."""
    verb, began = verb.asked(actor.state.context), False

    async def work() -> R:
        nonlocal began
        began = True
        return await verb.run(actor)

    try:
        return await (actor.request(work) if verb.waits else work())
    except (ActorStopped, NotOwner):
        if not actor.lost:
            raise
        if not began or verb.repeatable:
            raise _Moved from None
    raise _unknown(actor.key, verb)


async def _call(claim: Claim, verb: Verb[R], context: RuntimeContext) -> R:
    """Have another node run a verb."""
    assert context.peers is not None
    if verb.is_local:
        raise NotOwner(f"another node serves {claim.session_key}, and an agent cannot go there")

    async def still_serves(claim: Claim) -> bool:
        return await context.store.cluster.owner_of(claim.session_key) == claim

    outcome = await context.peers.calls.call(claim, encode_verb(encodable(verb)), still_serves)
    if outcome.error is not None:
        raise make_error(outcome.error)
    if outcome.state == "done":
        decoded: R = msgspec.json.decode(outcome.result, type=verb.returns)
        return decoded
    if outcome.state == "moved" or verb.repeatable:
        raise _Moved
    raise _unknown(claim.session_key, verb)


def _unknown(session_key: str, verb: Verb[Any]) -> ActorStopped:
    name = type(verb).__name__.lower()
    return ActorStopped(
        f"the node that serves {session_key} was lost, and it is not known whether {name!r} was "
        "done there: look at the conversation before you repeat it"
    )


async def answer_call(call: Call, registry: Registry) -> CallOutcome:
    """Run a verb for another node, if this one serves the conversation."""
    actor = registry.find(call.session_key)
    if actor is None:
        return CallOutcome(call.call_id, "moved")
    result: Any = None
    with contained() as caught:
        result = await _run_owned(actor, decode_verb(call.operation))
    match caught.error:
        case None:
            encoded = msgspec.Raw(msgspec.json.encode(encodable(result)))
            return CallOutcome(call.call_id, "done", encoded)
        case _Moved():
            return CallOutcome(call.call_id, "moved")
        case HermesError() | ValueError() | LookupError() | TypeError() as error:
            return CallOutcome(call.call_id, "failed", error=describe_error(error))
    log.error("a verb for another node failed", exc_info=caught.error)
    return CallOutcome(call.call_id, "unknown")


def peers_of(
    store: Store,
    bus: EventBus,
    nursery: trio.Nursery,
    wall: Callable[[], float],
    registry: Callable[[], Registry],
) -> Peers | None:
    """Return the other nodes of a cluster; None for a process that has its store for itself."""
    if not store.cluster.node:
        return None

    async def execute(call: Call) -> CallOutcome:
        return await answer_call(call, registry())

    return Peers(bus, store, ServedHere(registry), wall, nursery, execute)
