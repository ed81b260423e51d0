"""Paths in what the user types: `@path` in a message, the arguments of commands, completion."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from hermes.adapters.console.files.local import exists, expanded, shown
from hermes.errors import AttachmentRefused
from hermes.sanitize import sanitize

MENTION: Final = re.compile(
    r"""(?<![^\s(\[{])(@@?)(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'@][^\s]{0,4095}))"""
)
"""`@` at the beginning of a word, and a path, in quotes or without spaces."""
OPEN_MENTION: Final = re.compile(r"""(?:^|(?<=[\s(\[{]))@("[^"\n]*|'[^'\n]*|[^\s"'@]\S*|)$""")
"""The same before the cursor, where the path is not complete."""
OPEN_WORD: Final = re.compile(r"""(?:^|(?<=\s))("[^"\n]*|'[^'\n]*|[^\s"']\S*|)$""")
EXPLICIT: Final = ("./", "../", "~/")
"""Beginnings of a word that can only mean a path."""
AS_TEXT: Final = "; to send it as text, write @@"
PUNCTUATION: Final = ".,;:!?)]}'\"…"
MAX_PUNCTUATION: Final = 5
MAX_OFFERED: Final = 50
MAX_SCANNED: Final = 10_000


@attrs.frozen
class Mentions:
    """A message with the name of each file instead of its `@path`, and the paths."""

    text: str
    paths: list[Path]


def find_mentions(text: str) -> Mentions:
    """Return the files that a message mentions as `@path`. Looks at the disk: call it in a thread.

    A word with an `@` stays as it is if nothing has that path; `@@path` becomes `@path`. Raises
    `AttachmentRefused` for a path that is in quotes, or begins with `./`, `../` or `~/`, and does
    not exist.
    """
    paths: list[Path] = []

    def replaced(found: re.Match[str]) -> str:
        given = found[2] or found[3] or found[4]
        path, rest = _existing(given, quoted=found[4] is None)
        if path is None:
            explicit = found[4] is None or given.startswith(EXPLICIT)
            if explicit and found[1] == "@":
                raise AttachmentRefused(f"there is no file {shown(given)}{AS_TEXT}")
            return found[0]
        if found[1] == "@@":
            return found[0][1:]
        paths.append(path)
        return f"{path.name}{rest}"

    return Mentions(MENTION.sub(replaced, text), list(dict.fromkeys(paths)))


def _existing(given: str, *, quoted: bool) -> tuple[Path | None, str]:
    """Return the path in a word, and the punctuation after it; None if nothing has that path."""
    most = 0 if quoted else min(MAX_PUNCTUATION, len(given) - 1)
    for length in range(most + 1):
        end = len(given) - length
        if any(each not in PUNCTUATION for each in given[end:]):
            break
        path = expanded(given[:end])
        if given[:end].strip("./") and exists(path):
            return path, given[end:]
    return None, ""


def split_words(argument: str) -> list[str]:
    """Return the words of a command's argument; quotes and backslashes work as in a shell.

    Raises `ValueError` if a quote is not closed.
    """
    try:
        return shlex.split(argument)
    except ValueError:
        raise ValueError("a quotation mark is not closed") from None


def split_paths(argument: str) -> list[Path]:
    """Return the paths in the argument of `/attach`. Looks at the disk: call it in a thread.

    An argument that is the path of a file as a whole needs no quotes. Raises `ValueError`.
    """
    whole = expanded(argument)
    if exists(whole):
        return [whole]
    return [_without_sign(word) for word in split_words(argument)]


def _without_sign(word: str) -> Path:
    """Return a path; an `@` before it is ignored."""
    path = expanded(word)
    if word.startswith("@") and not exists(path):
        return expanded(word[1:])
    return path


# Completion


@attrs.frozen
class PathChoice:
    """A completion: `text` takes the place of the last `replaces` characters."""

    text: str
    replaces: int


def path_choices(line: str, command: str | None = None) -> list[PathChoice]:
    """Return the paths that continue the text before the cursor. Looks at the disk.

    They continue an `@path`; after a command, its last argument.
    """
    if command is not None:
        found = OPEN_WORD.search(line, len(command))
    else:
        found = OPEN_MENTION.search(line)
    if found is None:
        return []
    typed = found[1]
    quote = typed[:1] if typed[:1] in {'"', "'"} else ""
    return [PathChoice(text, len(typed)) for text in _continued(typed.removeprefix(quote), quote)]


def _continued(typed: str, quote: str) -> Iterator[str]:
    folder, slash, start = typed.rpartition("/")
    entries = sorted(_entries(expanded(folder + slash or "."), start))
    for name, is_folder in entries[:MAX_OFFERED]:
        text = f"{folder}{slash}{name}"
        mark = quote or ('"' if re.search(r"[\s'\\]", text) else "")
        if mark == "'" and "'" in text:
            continue
        if is_folder:
            yield f"{mark}{text}/"  # without the closing quote: more follows
        else:
            yield f"{mark}{text}{mark}"


def _entries(folder: Path, start: str) -> Iterator[tuple[str, bool]]:
    """Yield what a folder has with a name that starts so, and whether it is a folder.

    Hidden files are left out unless the user has typed a dot, and so are names that cannot be
    typed or shown.
    """
    try:
        with os.scandir(folder) as scanned:
            for _, entry in zip(range(MAX_SCANNED), scanned, strict=False):
                name = entry.name
                hidden = name.startswith(".") and not start.startswith(".")
                odd = name != sanitize(name) or '"' in name or "\n" in name
                if name.startswith(start) and not hidden and not odd:
                    yield name, entry.is_dir()
    except (OSError, ValueError):
        return
