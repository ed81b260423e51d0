"""The dependencies that all session actors share."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import trio

from hermes.actors.admission.gate import Admission
from hermes.actors.auto_title import AutoTitler
from hermes.actors.budget import InFlightUsage
from hermes.actors.cache_limits import CacheLimits
from hermes.actors.compression.compressor import SessionCompressor
from hermes.actors.delivery.questions import Questions
from hermes.actors.event_bus import EventBus
from hermes.actors.metrics import RuntimeMetrics
from hermes.actors.rebuild import RebuildLog, RebuildPolicy, rebuild_reason
from hermes.actors.recording.recorder import KnownTexts, TurnRecorder
from hermes.actors.remote.peers import Peers
from hermes.config import Config
from hermes.errors import ActorStopped
from hermes.protocols import (
    AgentCatalog,
    Build,
    Describe,
    RebuildRequest,
    Store,
    Transcriber,
    TurnRuntime,
)
from hermes.redaction import Redactor
from hermes.texts import ENGLISH, Texts


def _cache_limits(config: Config) -> CacheLimits:
    return CacheLimits(config.max_agents, config.transcript_bytes)


def _rebuild_log(context: RuntimeContext) -> RebuildLog:
    return RebuildLog(context.wall, context.redact or str)


@attrs.frozen(eq=False, kw_only=True)
class RuntimeContext:
    """Dependencies of session actors. It holds references only, and never changes."""

    store: Store
    config: Config
    build: Build
    agent_spec: Describe
    compressor: SessionCompressor
    nursery: trio.Nursery
    """For work that outlives a step of an actor: concurrent commands, closing agents."""
    metrics: RuntimeMetrics
    bus: EventBus
    caches: CacheLimits = attrs.field(
        init=False, default=attrs.Factory(lambda self: _cache_limits(self.config), takes_self=True)
    )
    """What all conversations together keep in memory."""
    in_flight: InFlightUsage = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: InFlightUsage(self.store.cluster), takes_self=True),
    )
    auto_titler: AutoTitler | None = None
    transcriber: Transcriber | None = None
    """Turns voice into text before a turn."""
    admission: Admission | None = None
    """Access control; None if the host decides who may use the runtime."""
    redact: Redactor | None = None
    """Removes secrets from what agents say, before it is stored or published."""
    texts: Texts = ENGLISH
    """What users are told."""
    catalog: AgentCatalog | None = None
    """The agents that users may choose, and their tools."""
    turn_runtime: Callable[[str], TurnRuntime] | None = None
    """Returns what the turns of a conversation may do with the runtime."""
    peers: Peers | None = None
    """The other nodes of a cluster; None for a process that has the store for itself."""
    questions: Questions
    """Questions for approval, and which of them were shown."""
    rebuild_policy: RebuildPolicy = rebuild_reason
    wall: Callable[[], float] = time.time
    rebuilds: RebuildLog = attrs.field(
        init=False, default=attrs.Factory(_rebuild_log, takes_self=True)
    )
    """Why the agents of conversations were built."""
    rebuild_request: RebuildRequest | None = None
    """Puts recorded requests together again; None if the host has no client for models."""
    _recorded_texts: KnownTexts = attrs.field(
        init=False, default=attrs.Factory(lambda self: KnownTexts(self.redact), takes_self=True)
    )

    def new_recorder(self) -> TurnRecorder | None:
        """Return what records a turn that begins now; None if turns are not recorded."""
        if not self.config.record_turns:
            return None
        return TurnRecorder(self.wall(), self._recorded_texts)

    def stop_error(self) -> Exception:
        """Return the error for requests that will not be answered any more."""
        return self.store.failure or ActorStopped("the runtime ended before it could answer")
