"""Open files of the user, and write files that the user wants to keep."""

from __future__ import annotations

import errno
import functools
import mimetypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import attrs
import trio

from hermes.errors import AttachmentRefused, HermesError
from hermes.messages import Attachment, StoredFile
from hermes.protocols import FileReader
from hermes.sanitize import one_line, scrub

T = TypeVar("T")
CHUNK: Final = 1 << 18
"""How many bytes are copied at once."""
MAX_NAME_BYTES: Final = 200
"""Bytes of a file's name without what makes it unique; most file systems allow 255."""
MAX_SAME_NAME: Final = 1000
NOTHING_THERE: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


class NotSaved(HermesError):
    """A file cannot be written; the message is one sentence."""


@attrs.frozen
class LocalFile:
    """A regular file of the user, open for reading."""

    path: Path
    size: int
    file: BinaryIO

    @property
    def name(self) -> str:
        """The name that people see."""
        return self.path.name

    @property
    def attachment(self) -> Attachment:
        """The file as it is sent."""
        return Attachment(file=self.file, name=self.name)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as it can be shown: on one line, without control characters."""
    return one_line(scrub(os.fspath(path)))


def expanded(given: str) -> Path:
    """Return the path that a user means; a `~` at its beginning is the home folder."""
    try:
        return Path(given).expanduser()
    except RuntimeError:  # there is no such user
        return Path(given)


def exists(path: Path) -> bool:
    """Return whether there is something at a path, readable or not."""
    try:
        path.stat()
    except OSError as error:
        return error.errno not in NOTHING_THERE
    except ValueError:  # a null character
        return False
    return True


def open_local(path: Path) -> LocalFile:
    """Open a file for reading. Blocks, so call it in a thread.

    Raises `AttachmentRefused`, with one sentence, if it is not a regular file, cannot be read or is
    empty.
    """
    try:
        _require_regular(path, path.stat())  # before it is opened: that may affect a device
        # Without blocking: in the meantime it may have become a pipe that nobody writes to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with ExitStack() as on_error:
            file = on_error.enter_context(os.fdopen(descriptor, "rb", buffering=0))
            status = os.fstat(descriptor)
            _require_regular(path, status)
            on_error.pop_all()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise AttachmentRefused(f"{shown(path)} cannot be read: {reason}") from None
    except ValueError as error:
        if isinstance(error, AttachmentRefused):
            raise
        raise AttachmentRefused(f"{shown(path)} is not a path") from None
    return LocalFile(path, status.st_size, file)


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise AttachmentRefused(f"{shown(path)} is a folder; only files can be attached")
    if not stat.S_ISREG(status.st_mode):
        raise AttachmentRefused(f"{shown(path)} is not a regular file")
    if not status.st_size:
        raise AttachmentRefused(f"{shown(path)} is empty")


@contextmanager
def closing(files: list[LocalFile]) -> Iterator[list[LocalFile]]:
    """Close files at the end of the block."""
    try:
        yield files
    finally:
        for each in files:
            each.file.close()


# Saving


def file_name(file: StoredFile) -> str:
    """Return a name under which a file can be saved: one component, visible, of bounded length."""
    name = one_line(scrub(file.name or "")).replace("\\", "/").rpartition("/")[2].strip(". ")
    if not name:
        name = file.type + (mimetypes.guess_extension(file.media_type) or "")
    stem, suffix = Path(name).stem, Path(name).suffix
    room = MAX_NAME_BYTES - len(suffix.encode())
    if room <= 0:  # not a suffix that means anything
        stem, suffix, room = name, "", MAX_NAME_BYTES
    return stem.encode()[:room].decode(errors="ignore") + suffix


def target_of(given: str, file: StoredFile) -> Path:
    """Return where a file is saved: in a folder that the user named, or under that name.

    Raises `NotSaved` if there is no such folder.
    """
    path = expanded(given)
    if path.is_dir():
        return path / file_name(file)
    if given.endswith("/") or not path.parent.is_dir():
        folder = path if given.endswith("/") else path.parent
        raise NotSaved(f"there is no folder {shown(folder)}")
    return path


async def save(reader: FileReader, target: Path) -> Path:
    """Write a file to a new path, and return that: an existing file is never replaced.

    If there is one, a number is added to the name. Only the user can read the new file. If it
    cannot be written completely, nothing is left behind. Raises `NotSaved`, and what the reader
    raises.
    """
    path, file = await _in_thread(target, functools.partial(_create, target))
    try:
        with file:
            await _copy(reader, file, path)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return path


async def _copy(reader: FileReader, file: BinaryIO, path: Path) -> None:
    offset, size = 0, reader.file.size
    while offset < size:
        chunk = await reader.read(offset, min(CHUNK, size - offset))
        if not chunk:
            raise NotSaved(f"{shown(path)} cannot be written: the file is incomplete")
        await _in_thread(path, functools.partial(_write, file, chunk))
        offset += len(chunk)


async def _in_thread(path: Path, function: Callable[[], T]) -> T:
    try:
        return await trio.to_thread.run_sync(function)
    except (OSError, ValueError) as error:  # a null character is a `ValueError`
        reason = ((isinstance(error, OSError) and error.strerror) or str(error)).lower()
        raise NotSaved(f"{shown(path)} cannot be written: {reason}") from None


def _create(target: Path) -> tuple[Path, BinaryIO]:
    """Create a file with the name of the target, or with a number in it."""
    stem, suffix = target.stem, target.suffix
    names = [target.name, *(f"{stem} ({number}){suffix}" for number in range(1, MAX_SAME_NAME))]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    for name in names:
        path = target.with_name(name)
        with suppress(FileExistsError):
            return path, os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
    raise FileExistsError(errno.EEXIST, "there are too many files with this name")


def _write(file: BinaryIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
