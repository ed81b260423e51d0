"""Parts for tests, ours and yours: they keep the contracts of the real ones.

`fakes` need no network: `ScriptedAgent` and `CountingBuilder` stand for a model,
`DeterministicCompressor` for one that sums up, `RecordingHook` for a plugin, `MemoryAdapter` for a
platform. `open_model` is a model behind a real socket, with answers and faults as a test wants,
and `open_telegram` the Bot API, with people who talk to the bot.
"""

from __future__ import annotations

from hermes.testing.fakes import (
    CountingBuilder as CountingBuilder,
    DeterministicCompressor as DeterministicCompressor,
    MemoryAdapter as MemoryAdapter,
    RecordingHook as RecordingHook,
    ScriptedAgent as ScriptedAgent,
    Step as Step,
    forever as forever,
    texts_of as texts_of,
)
from hermes.testing.model import (
    LoopbackModel as LoopbackModel,
    ModelRequest as ModelRequest,
    open_model as open_model,
)
from hermes.testing.prefix_cache import PrefixCache as PrefixCache
from hermes.testing.script import (
    CutOff as CutOff,
    Disconnect as Disconnect,
    Drip as Drip,
    ErrorEvent as ErrorEvent,
    Fault as Fault,
    Garbage as Garbage,
    HangUp as HangUp,
    ModelAnswer as ModelAnswer,
    OnlyGarbage as OnlyGarbage,
    Refuse as Refuse,
)
from hermes.testing.telegram import (
    LoopbackTelegram as LoopbackTelegram,
    open_telegram as open_telegram,
)
