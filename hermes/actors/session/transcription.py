"""Voice becomes text before the turn: each audio file of the input is transcribed once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import trio
from msgspec.structs import replace

from hermes.actors.context import RuntimeContext
from hermes.actors.session.running_turn import RunningTurn
from hermes.background import holding, start_soon
from hermes.errors import HermesError, StoreFailed
from hermes.messages import InboxRow, JsonObject, Message
from hermes.messages.transcripts import add_transcripts, said_by_parts, untranscribed
from hermes.protocols import Transcriber
from hermes.sanitize import scrub
from hermes.transcript.attachments import describe
from hermes.user_code import contained, loggable

log: logging.Logger = logging.getLogger(__name__)

MAX_CONCURRENT: Final = 4
MAX_TRANSCRIPT: Final = 200_000
"""Characters of a transcript that are kept."""
FAILED: Final = "it could not be transcribed"
SILENT: Final = "no speech was recognized in it"


def can_be_steered(context: RuntimeContext, row: InboxRow) -> bool:
    """Return whether a running turn can take a message; one with new audio waits for the next."""
    return context.transcriber is None or not untranscribed(row.inbound.parts)


async def transcribe_input(context: RuntimeContext, turn: RunningTurn) -> None:
    """Transcribe the audio files in the input of a turn that have no transcript yet.

    Each transcript is stored with its message, so that it is not made again after a crash. A file
    that cannot be transcribed is described in the text of the message.
    """
    files = [file for message in turn.input for file in untranscribed(message.parts)]
    if not files or context.transcriber is None:
        return
    run = _Transcription(context, turn, context.transcriber)
    async with trio.open_nursery() as nursery:
        for file_id in dict.fromkeys(files):
            start_soon(nursery, run.transcribe, file_id)
    turn.input = [_with_transcripts(each, run.found, run.reasons) for each in turn.input]


class _Transcription:
    """The transcripts of one turn."""

    def __init__(
        self, context: RuntimeContext, turn: RunningTurn, transcriber: Transcriber
    ) -> None:
        self.found: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._context = context
        self._turn = turn
        self._transcriber = transcriber
        self._limiter = trio.CapacityLimiter(MAX_CONCURRENT)

    async def transcribe(self, file_id: str) -> None:
        """Transcribe one file, within the time limit, and store the transcript."""
        text: str | None = None
        timeout = self._context.config.transcription_timeout
        async with holding(self._limiter):
            with contained() as caught, trio.move_on_after(timeout) as scope:
                reader = await self._turn.open_file(file_id)
                text = _checked(await self._transcriber.transcribe(reader))
        if text:
            self.found[file_id] = text
            await self._store(file_id, text)
            return
        self.reasons[file_id] = FAILED if text is None else SILENT
        if text is None:
            late = f"timed out after {timeout:g} s" if scope.cancelled_caught else None
            self._log(late, caught.error)

    def _log(self, late: str | None, error: BaseException | None) -> None:
        """Log why there is no transcript; a failure that Hermes knows is one line."""
        expected = isinstance(error, HermesError)
        why = late or (f"failed: {loggable(error)}" if error and expected else "failed")
        log.warning(
            "the transcription for turn %d %s", self._turn.turn_id, why,
            exc_info=None if expected else error, extra={"metadata": self._turn.metadata},
        )  # fmt: skip

    async def _store(self, file_id: str, text: str) -> None:
        """Store a transcript with the messages that have the file."""
        store, turn, found = self._context.store, self._turn, {file_id: text}
        for index, row in enumerate(turn.rows):
            if file_id not in untranscribed(row.inbound.parts):
                continue
            parts = add_transcripts(row.inbound.parts or (), found)
            turn.rows[index] = replace(row, inbound=replace(row.inbound, parts=parts))
            with contained(StoreFailed) as caught:
                await store.store_transcripts(turn.session_key, row.inbox_id, found)
            if caught.error is not None:  # the turn has it; it is only made again after a crash
                extra = {"metadata": turn.metadata}
                log.warning("a transcript was not stored", exc_info=caught.error, extra=extra)


def _checked(text: object) -> str:
    """Return a transcript. Raises `TypeError` if it is no text."""
    if not isinstance(text, str):
        raise TypeError(f"a transcriber must return a string, not {type(text).__name__}")
    return scrub(text).strip()[:MAX_TRANSCRIPT]


def _with_transcripts(
    message: Message, found: Mapping[str, str], reasons: Mapping[str, str]
) -> Message:
    """Return a message with transcripts, and with notes about files that have none."""
    if not untranscribed(message.parts):
        return message
    given = message.parts or ()
    old = [_note(part, reason) for part in given for reason in (FAILED, SILENT)]
    parts: list[JsonObject] = []
    for part in add_transcripts([each for each in given if each not in old], found):
        notes = [_note(part, reasons[id_]) for id_ in untranscribed([part]) if id_ in reasons]
        parts += [part, *notes]
    return said_by_parts(message, parts)


def _note(part: JsonObject, reason: str) -> JsonObject:
    return {"type": "text", "text": describe(part, reason)}
