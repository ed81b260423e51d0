"""Fakes for tests of your own agents and bots. Our contract tests run on them too.

`ScriptedAgent`, `CountingBuilder`, `DeterministicCompressor`, `RecordingHook` and `MemoryAdapter`
need no network. `open_model` serves a model provider on a loopback socket, with scripted answers
and faults; `open_transcription` serves transcriptions of audio; `open_telegram` serves the Telegram
Bot API, with simulated users.
"""

from __future__ import annotations

from hermes.testing.dialects import SeenFile as SeenFile
from hermes.testing.fakes import (
    CountingBuilder as CountingBuilder,
    DeterministicCompressor as DeterministicCompressor,
    MemoryAdapter as MemoryAdapter,
    RecordingHook as RecordingHook,
    ScriptedAgent as ScriptedAgent,
    SentFile as SentFile,
    Step as Step,
    forever as forever,
    texts_of as texts_of,
)
from hermes.testing.inline_store import inline as inline
from hermes.testing.inspection import Inspection as Inspection, inspect as inspect
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
from hermes.testing.transcription import (
    LoopbackTranscription as LoopbackTranscription,
    TranscriptionRequest as TranscriptionRequest,
    open_transcription as open_transcription,
)
