"""What a tool returns: a text, and files for the model, for the user, or for both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, get_args

import attrs
import msgspec

from hermes.agents.remote_files import from_loop
from hermes.agents.threads import HostLoop
from hermes.errors import AttachmentRefused, UnknownFile
from hermes.messages import Attachment, JsonObject, StoredFile, file_ids
from hermes.protocols import Turn
from hermes.sanitize import scrub
from hermes.transcript.attachments import describe

log: logging.Logger = logging.getLogger(__name__)

Audience: TypeAlias = Literal["model", "user", "both"]
"""Who gets the files of a tool."""
ToolFile: TypeAlias = Attachment | StoredFile
SENT_TO_USER = "the user gets it with your answer"
RECORD = "hermes-tool-result-1 "
"""Begins a recorded result that is JSON. A text that happens to begin so is stored as JSON, too."""


@attrs.frozen
class ToolOutput:
    """What a tool may return instead of a text: a text and files.

    Raises `TypeError` or `ValueError` for other types and an unknown audience.
    """

    text: str = ""
    """The text for the model."""
    files: Sequence[ToolFile] = ()
    """Files to store. A `StoredFile` must be one of this conversation."""
    audience: Audience = "both"
    """Who gets the files: the model, the user with the answer of the turn, or both."""

    def __attrs_post_init__(self) -> None:
        text: object = self.text
        files: Sequence[object] = self.files
        if not isinstance(text, str):
            raise TypeError(f"the text of a ToolOutput must be a string, not {text!r:.50}")
        if wrong := [each for each in files if not isinstance(each, ToolFile)]:
            raise TypeError(f"a file of a ToolOutput must be an Attachment, not {wrong[0]!r:.50}")
        if self.audience not in get_args(Audience):
            raise ValueError(f"audience is model, user or both, not {self.audience!r:.50}")


@attrs.frozen
class ToolOutcome:
    """The result of a tool call."""

    content: str
    """The text for the model."""
    failed: bool = False
    parts: tuple[JsonObject, ...] = ()
    """The files for the model, as parts of the row with the result."""
    files: tuple[StoredFile, ...] = ()
    """The files for the user; an agent returns them in `TurnResult.files`."""

    def with_files(
        self, parts: Sequence[JsonObject], files: Sequence[StoredFile], no_text: str
    ) -> ToolOutcome:
        """Return the outcome with files; the text says which of them the user gets.

        `no_text` is the text if there is nothing else to say.
        """
        notes = [describe(file.part, SENT_TO_USER) for file in files]
        content = "\n".join(filter(None, [self.content, *notes])) or no_text
        return attrs.evolve(self, content=content, parts=tuple(parts), files=tuple(files))


def outputs_of(value: object) -> list[ToolOutput] | None:
    """Return the outputs that a tool has returned; None if it has returned something else."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not any(isinstance(each, ToolOutput | ToolFile) for each in given):
        return None
    if not all(isinstance(each, ToolOutput | ToolFile | str) for each in given):
        return None
    return [_output(each) for each in given]


def _output(value: object) -> ToolOutput:
    match value:
        case ToolOutput():
            return value
        case Attachment() | StoredFile():
            return ToolOutput(files=[value])
        case _:
            return ToolOutput(str(value))


async def store_files(
    outputs: Iterable[ToolOutput], turn: Turn, redact: Callable[[str], str]
) -> tuple[list[JsonObject], list[StoredFile]]:
    """Store the files of outputs; return the parts for the model, and the files for the user.

    They are kept while the turn runs. Raises `AttachmentRefused`, and `UnknownFile` for a stored
    file that is not of this conversation. Secrets in the names of new files are redacted.
    """
    for_model: dict[str, JsonObject] = {}
    for_user: dict[str, StoredFile] = {}
    for output in outputs:
        for each in output.files:
            file = await _store(each, turn, redact)
            if output.audience != "user":
                for_model[file.id] = file.part
            if output.audience != "model":
                for_user[file.id] = file
    return [*for_model.values()], [*for_user.values()]


async def _store(given: ToolFile, turn: Turn, redact: Callable[[str], str]) -> StoredFile:
    if isinstance(given, StoredFile):
        return await _known(given.id, turn, redact)
    name = given.file_name
    return await turn.put_file(given if name is None else attrs.evolve(given, name=redact(name)))


async def _known(file_id: str, turn: Turn, redact: Callable[[str], str]) -> StoredFile:
    """Return a file of the conversation; its name is fixed, so it must not contain a secret."""
    file = (await turn.open_file(file_id)).file
    if file.name is not None and redact(file.name) != file.name:
        raise AttachmentRefused("the name of the file contains a secret")
    return file


def from_host_loop(value: object, host: HostLoop) -> object:
    """Return what a tool on the loop of an asyncio host has returned, as Trio can read it."""
    outputs = outputs_of(value)
    if outputs is None:
        return value
    return [
        attrs.evolve(each, files=[_crossing(file, host) for file in each.files]) for each in outputs
    ]


def _crossing(file: ToolFile, host: HostLoop) -> ToolFile:
    return from_loop(file, host) if isinstance(file, Attachment) else file


class _Record(msgspec.Struct, frozen=True):
    """The result of a recorded call, with the ids of its files."""

    content: str
    model: Sequence[str] = ()
    user: Sequence[str] = ()


_decode = msgspec.json.Decoder(_Record).decode


def recorded(outcome: ToolOutcome) -> str:
    """Return an outcome as the text that is recorded for a call."""
    if not (outcome.parts or outcome.files or outcome.content.startswith(RECORD)):
        return outcome.content
    ids = file_ids(outcome.parts), [file.id for file in outcome.files]
    return RECORD + msgspec.json.encode(_Record(scrub(outcome.content), *ids)).decode()


async def replayed(
    text: str, turn: Turn, redact: Callable[[str], str], *, failed: bool
) -> ToolOutcome:
    """Return the outcome of a call that an earlier run of the turn has recorded."""
    if not text.startswith(RECORD):
        return ToolOutcome(text, failed)
    try:
        record = _decode(text.removeprefix(RECORD))
    except msgspec.DecodeError:  # a text of an earlier version that happens to begin so
        return ToolOutcome(text, failed)
    known: dict[str, StoredFile] = {}
    for file_id in dict.fromkeys([*record.model, *record.user]):
        try:
            known[file_id] = await _known(file_id, turn, redact)
        except (UnknownFile, AttachmentRefused):
            log.warning("a file of a recorded tool call is gone", extra={"metadata": turn.metadata})
    parts = tuple(known[file_id].part for file_id in record.model if file_id in known)
    files = tuple(known[file_id] for file_id in record.user if file_id in known)
    return ToolOutcome(record.content, failed, parts, files)
