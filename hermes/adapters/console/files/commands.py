"""`/attach`, `/detach` and `/save`, and the files of the next message.

These commands are run by the console itself and never sent to the bot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from hermes.actors.commands import COMMANDS, parse, recognize
from hermes.adapters.console.chat import Chat, ChatFile
from hermes.adapters.console.files.local import (
    LocalFile,
    NotSaved,
    closing,
    open_local,
    save,
    shown,
    target_of,
)
from hermes.adapters.console.files.paths import (
    AS_TEXT,
    Mentions,
    find_mentions,
    split_paths,
    split_words,
)
from hermes.errors import AttachmentRefused, HermesError, StoreFailed, UnknownFile
from hermes.sanitize import one_line
from hermes.texts import Texts, help_line
from hermes.transcript.attachments import describe, readable_size

PLATFORM: Final = "console"
LOCAL: Final = frozenset({"attach", "detach", "save"})
CARRIERS: Final = frozenset({"queue", "steer"})
"""Commands that carry a message, so that files go with it."""
NO_HINTS: Final[Mapping[Path, str]] = {}
REMOVABLE: Final = "; /detach removes it"
MAX_LISTED: Final = 20
ATTACHED: Final = "Attached: {files}. /attach without a path lists the files, /detach removes them."
NOTHING_ATTACHED: Final = "No file is attached to the next message."
SENT: Final = "(with {files})"
DETACHED: Final = "Removed: {files}."
NOT_ATTACHED: Final = "No attached file is called {name}."
NOT_ATTACHABLE: Final = "Not attached: {problem}."
NO_FILES: Final = "There is no file in this conversation."
WHICH_FILE: Final = "Use /save and the number or the name of a file:"
NO_SUCH_FILE: Final = "There is no file {name} in this conversation."
SAVED: Final = "Saved: {path}"
NOT_SAVED: Final = "Not saved: {problem}."


@attrs.frozen
class Answer:
    """What a command says: `text`, and whether the command has failed."""

    text: str
    failed: bool = False


@attrs.frozen
class Prepared:
    """A message that is ready to be sent: its text, and its files, which are open."""

    text: str
    files: list[LocalFile]

    @property
    def described(self) -> str:
        """What is sent with the text."""
        return SENT.format(files="; ".join(map(_described, self.files)))


class LocalFiles:
    """The files that are attached to the next message, and the commands about files."""

    def __init__(self) -> None:
        self._paths: list[Path] = []

    # Messages

    @asynccontextmanager
    async def prepare(self, line: str, *, mentions: bool) -> AsyncIterator[Prepared]:
        """Open the files of a message for the duration of the block, which sends it.

        With `mentions`, `@path` attaches a file. If the block is left normally, the attached files
        were sent. Raises `AttachmentRefused` before the block if a file cannot be sent; then the
        files stay attached.
        """
        if not carries_files(line):
            yield Prepared(line, [])
            return
        attached, found = list(self._paths), Mentions(line, [])
        if mentions and "@" in line:
            found = await trio.to_thread.run_sync(find_mentions, line)
        hints = {**dict.fromkeys(found.paths, AS_TEXT), **dict.fromkeys(attached, REMOVABLE)}
        async with open_files([*attached, *found.paths], hints) as files:
            yield Prepared(found.text, files)
        self._paths = [each for each in self._paths if each not in attached]

    # Commands

    async def run(self, chat: Chat, line: str, seen: Sequence[ChatFile]) -> Answer | None:
        """Run a command about files and return its answer; None if the line is something else.

        `seen` are files that were shown; they may belong to another conversation, such as that of
        a background task.
        """
        parsed = parse(line, PLATFORM)
        if parsed is None or parsed.name not in LOCAL:
            return None
        try:
            match parsed.name:
                case "attach":
                    return await self._attach(parsed.argument)
                case "detach":
                    return self._detach(parsed.argument)
                case _:
                    return await self._save(chat, parsed.argument, seen)
        except StoreFailed:
            raise
        except (HermesError, ValueError) as error:
            form = NOT_SAVED if parsed.name == "save" else NOT_ATTACHABLE
            return Answer(form.format(problem=str(error).rstrip(".")), failed=True)

    async def _attach(self, argument: str) -> Answer:
        if not argument:
            return self._list()
        new = await trio.to_thread.run_sync(_checked, argument)
        self._paths = _distinct([*self._paths, *(path for path, _ in new)])
        files = "; ".join(text for _, text in new)
        return Answer(ATTACHED.format(files=files))

    def _list(self) -> Answer:
        if not self._paths:
            return Answer(NOTHING_ATTACHED)
        return Answer("\n".join(_numbered([shown(path) for path in self._paths])))

    def _detach(self, argument: str) -> Answer:
        if not self._paths:
            return Answer(NOTHING_ATTACHED)
        gone = list(self._paths)
        if argument:
            number = int(argument[:9]) if argument.isdecimal() else 0
            gone = self._paths[number - 1 : number] if number else []
            gone = gone or [each for each in self._paths if argument in {each.name, str(each)}]
            if not gone:
                return Answer(NOT_ATTACHED.format(name=one_line(argument)), failed=True)
        self._paths = [each for each in self._paths if each not in gone]
        files = ", ".join(shown(each.name) for each in gone)
        return Answer(DETACHED.format(files=files))

    async def _save(self, chat: Chat, argument: str, seen: Sequence[ChatFile]) -> Answer:
        files = _merged(await chat.files(), seen)
        if not files:
            return Answer(NO_FILES, failed=True)
        if not argument and len(files) > 1:
            return Answer("\n".join([WHICH_FILE, *_listed(files)]))
        name, path = _arguments(argument, files)
        file = files[0] if not argument else _chosen(name, files)
        if file is None:
            text = NO_SUCH_FILE.format(name=one_line(name))
            return Answer("\n".join([text, WHICH_FILE, *_listed(files)]), failed=True)
        try:
            reader = await chat.open_file(file)
        except UnknownFile:
            raise NotSaved(f"{describe(file.part)} was deleted") from None
        target = await trio.to_thread.run_sync(target_of, path, reader.file)
        return Answer(SAVED.format(path=shown(await save(reader, target))))


def console_help(texts: Texts) -> str:
    """Return the help on the commands that only a console has."""
    names = [name for name, command in COMMANDS.items() if command.platform == PLATFORM]
    return "\n".join(": ".join(help_line(texts, name)) for name in names)


def carries_files(line: str) -> bool:
    """Return whether files can go with a line: it is a message, or has one."""
    _, is_command = recognize(line)
    parsed = parse(line, PLATFORM)
    return not is_command or (
        parsed is not None and parsed.name in CARRIERS and bool(parsed.argument)
    )


@asynccontextmanager
async def open_files(
    paths: Iterable[Path], hints: Mapping[Path, str] = NO_HINTS
) -> AsyncIterator[list[LocalFile]]:
    """Open files, each once, for the duration of the block, which sends them.

    Raises `AttachmentRefused`, with the names of the files, if one cannot be opened or the block
    does. `hints` says for a path what the user can do about it.
    """
    with closing([]) as files:
        for path in _distinct(paths):
            try:
                files.append(await trio.to_thread.run_sync(open_local, path))
            except AttachmentRefused as error:
                raise AttachmentRefused(f"{error}{hints.get(path, '')}") from None
        try:
            yield files
        except AttachmentRefused as error:
            names = ", ".join(shown(each.name) for each in files)
            raise AttachmentRefused(f"{names}: {error}") from error


def _distinct(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        found.setdefault(path.absolute(), path)
    return list(found.values())


def _checked(argument: str) -> list[tuple[Path, str]]:
    """Return the paths in an argument, each with its name and size. Raises `ValueError`."""
    found = []
    for path in split_paths(argument):
        with closing([open_local(path)]) as [file]:
            found.append((path, _described(file)))
    return found


def _described(file: LocalFile) -> str:
    return f"{shown(file.name)}, {readable_size(file.size)}"


def _numbered(lines: Sequence[str], first: int = 1) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines, first)]


def _listed(files: Sequence[ChatFile]) -> list[str]:
    """Return a numbered list of the latest files."""
    first = max(len(files) - MAX_LISTED, 0)
    lines = [one_line(describe(each.part)) for each in files[first:]]
    return _numbered(lines, first + 1)


def _merged(files: Sequence[ChatFile], seen: Sequence[ChatFile]) -> list[ChatFile]:
    """Return the files of a conversation and then others that were shown, each once."""
    found: dict[str, ChatFile] = {}
    for each in (*files, *seen):
        found.setdefault(each.part["file"], each)
    return list(found.values())


def _arguments(argument: str, files: Sequence[ChatFile]) -> tuple[str, str]:
    """Return the number or name, and the path. Raises `ValueError`."""
    if any(argument == each.part.get("name") for each in files):
        return argument, ""  # a name with spaces needs no quotes
    words = split_words(argument)
    if len(words) > 2:  # noqa: PLR2004 - the name and the path
        raise ValueError("give one file and one path; names with spaces need quotation marks")
    return (*words, "", "")[0], (*words, "", "")[1]


def _chosen(name: str, files: Sequence[ChatFile]) -> ChatFile | None:
    """Return the file with this number, or the latest one with this name."""
    if name.isdecimal() and 0 < int(name[:9]) <= len(files):
        return files[int(name[:9]) - 1]
    names = [name, name.lower()]
    for latest in reversed(files):
        own = str(latest.part.get("name") or "")
        if own == names[0] or own.lower() == names[1]:
            return latest
    return None
