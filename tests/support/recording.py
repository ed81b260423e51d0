"""Agents that record the history they are given, and counts of agent builds."""

from __future__ import annotations

import attrs

from hermes.config import CompressionConfig, Config
from hermes.messages import AgentSpec
from hermes.testing import CountingBuilder, ScriptedAgent, inspect, texts_of

LONG = "a sentence that is long enough to be worth a summary, " * 3
SMALL_WINDOW = Config(compression=CompressionConfig(window=1000, max_output=0, share=0.5))
DEFAULT_SIGNATURE = AgentSpec(session_key="k").signature


@attrs.define
class RecordingAgent(ScriptedAgent):
    """An agent that records role and text of its history in each turn."""

    shown: list = attrs.Factory(list)

    async def run(self, turn):
        self.shown.append(texts_of(turn.history))
        return await super().run(turn)


def recording_builder(*script):
    """A builder of agents that record their history and answer from a script."""
    return CountingBuilder(lambda _: RecordingAgent(script))


def builds(runtime):
    """The number of agent builds by reason."""
    return dict(inspect(runtime).context.metrics.builds)
