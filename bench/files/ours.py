"""Driver of attached files: our store and request bodies, and plain copies of the same bytes."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import trio

from bench.harness.driver import Figures, serve
from hermes.agents.providers.attachments import data, file_slot
from hermes.agents.providers.base import FileBody
from hermes.agents.providers.file_body import CHUNK as SENT, open_body
from hermes.messages import Attachment
from hermes.store import SessionStore, open_store
from hermes.store.files.contents import CHUNK

KEY = "key"
COMMIT = 4 * 4120
"""The bytes that a commit of one file appends to the write-ahead log."""


@contextmanager
def scratch(path: str, megabytes: float) -> Iterator[Callable[[], Path]]:
    """Yield a function that returns a source with new bytes; remove everything afterwards."""
    source, size = Path(f"{path}.source"), int(megabytes * 1_000_000)

    def renew() -> Path:
        with source.open("wb") as file:
            file.write(os.urandom(size))
            os.fsync(file.fileno())
        return source

    try:
        yield renew
    finally:
        source.unlink(missing_ok=True)
        for folder in (f"{path}.blobs", f"{path}.copies"):
            shutil.rmtree(folder, ignore_errors=True)


def figures(seconds: list[float]) -> Figures:
    """Return the figures of some files; the first one only warms up."""
    return {"ms": statistics.median(seconds[1:]) * 1e3, "worst_ms": max(seconds[1:]) * 1e3}


def store_blocking(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    with scratch(path, megabytes) as renew, SessionStore(path) as store:
        for _ in range(times + 1):
            source = renew()
            started = perf_counter()
            file = store.put_file(Attachment(path=source), session_key=KEY)
            taken.append(perf_counter() - started)
            check(store.read_file(file.id, session_key=KEY), source)
    return figures(taken)


async def store_awaited(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    with scratch(path, megabytes) as renew:
        async with open_store(path) as store:
            for _ in range(times + 1):
                source = renew()
                started = perf_counter()
                file = await store.put_file(Attachment(path=source), session_key=KEY)
                taken.append(perf_counter() - started)
                check(await (await store.open_file(file.id, session_key=KEY)).read(), source)
    return figures(taken)


def copy_plainly(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    folder = Path(f"{path}.copies")
    folder.mkdir(parents=True)
    with scratch(path, megabytes) as renew:
        for number in range(times + 1):
            source = renew()
            started = perf_counter()
            copy(source, folder, f"{number:02}")
            taken.append(perf_counter() - started)
            check((folder / f"{number:02}" / "copy").read_bytes(), source)
    return figures(taken)


async def copy_awaited(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    folder = Path(f"{path}.copies")
    folder.mkdir(parents=True)  # noqa: ASYNC240 - before the time is taken
    with scratch(path, megabytes) as renew:
        for number in range(times + 1):
            source = renew()
            started = perf_counter()
            await trio.to_thread.run_sync(copy, source, folder, f"{number:02}")
            taken.append(perf_counter() - started)
            check((folder / f"{number:02}" / "copy").read_bytes(), source)
    return figures(taken)


def copy(source: Path, folder: Path, name: str) -> None:
    """Copy a file in chunks, and flush as often as a store does.

    That is the file, the subfolder of its name, which is new, the folder of that, and a log with
    the pages of one commit.
    """
    with (
        source.open("rb", buffering=0) as original,
        (folder / "new").open("wb", buffering=0) as file,
    ):
        while chunk := original.read(CHUNK):
            file.write(chunk)
        os.fsync(file.fileno())
    (folder / name).mkdir()
    (folder / "new").rename(folder / name / "copy")
    for each in (folder / name, folder):
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    with (folder / "log").open("ab", buffering=0) as log:
        log.write(bytes(COMMIT))
        os.fsync(log.fileno())


def check(stored: bytes, source: Path) -> None:
    if stored != source.read_bytes():
        raise AssertionError("the stored file differs from its source")


# Sending


@contextmanager
def sink(expected: int) -> Iterator[socket.socket]:
    """Connect to a thread that confirms each `expected` bytes that it has received."""
    ours, theirs = socket.socketpair()

    def receive() -> None:
        buffer, count = bytearray(1 << 20), 0
        while received := theirs.recv_into(buffer):
            count += received
            if count == expected:
                theirs.sendall(b".")
                count = 0

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()
        theirs.close()


async def send_body(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    with scratch(path, megabytes) as renew:
        async with open_store(path) as store:
            file = await store.put_file(Attachment(path=renew()), session_key=KEY)
            part = file_slot(file.part, {"data": data()}, "base64")
            body = FileBody(bytes(part), lambda id_: store.open_file(id_, session_key=KEY))
            with sink((await open_body(body)).size) as connection:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
                for _ in range(times + 1):
                    started = perf_counter()
                    async for chunk in await open_body(body):
                        await stream.send_all(chunk)
                    await stream.receive_some(1)
                    taken.append(perf_counter() - started)
    return figures(taken)


async def send_plainly(path: str, megabytes: float, times: int) -> Figures:
    taken = []
    with scratch(path, megabytes) as renew:
        source = renew()
        with sink(-(-source.stat().st_size // 3) * 4) as connection:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
            for _ in range(times + 1):
                started = perf_counter()
                with source.open("rb", buffering=0) as file:
                    while chunk := file.read(SENT):
                        await stream.send_all(base64.b64encode(chunk))
                await stream.receive_some(1)
                taken.append(perf_counter() - started)
    return figures(taken)


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "trio": version("trio")}
    commands = (
        store_blocking, store_awaited, copy_plainly, copy_awaited, send_body, send_plainly,
    )  # fmt: skip
    serve(about, *commands, run=trio.run)
