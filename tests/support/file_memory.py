"""The program of test_file_memory: stores, reads and sends a large file, and measures its memory.

It prints a line of JSON: by how many bytes the peak of its memory grew during each operation.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import trio

from hermes.agents.providers.attachments import data, file_slot
from hermes.agents.providers.base import FileBody
from hermes.agents.providers.file_body import open_body
from hermes.config import AttachmentLimits
from hermes.messages import Attachment
from hermes.store import SessionStore, open_store

MEGABYTE = 1_000_000
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak():
    """The largest memory of this process since the last call, in bytes; begin to measure again."""
    found = int(re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())[1]) * 1024
    PEAK.write_text("5")
    return found


async def chunks(source):
    with source.open("rb") as file:
        while chunk := file.read(50_000):
            yield chunk


async def store_path(store, source):
    await store.put_file(Attachment(path=source), session_key="k")


async def store_file(store, source):
    with source.open("rb") as file:
        await store.put_file(Attachment(file=file), session_key="k")


async def store_chunks(store, source):
    await store.put_file(Attachment(chunks=chunks(source)), session_key="k")


async def read(store, source):
    file = await store.put_file(Attachment(path=source), session_key="k")
    reader, offset = await store.open_file(file.id, session_key="k"), 0
    while chunk := await reader.read(offset, MEGABYTE):
        offset += len(chunk)
    assert offset == file.size


async def send(store, source):
    file = await store.put_file(Attachment(path=source), session_key="k")
    part = file_slot(file.part, {"data": data()}, "base64")
    body = await open_body(FileBody(bytes(part), lambda id_: store.open_file(id_, session_key="k")))
    sent = 0
    async for chunk in body:
        sent += len(chunk)
    assert sent == body.size > file.size


def store_blocking(store, source):
    store.put_file(Attachment(path=source), session_key="k")


async def main(folder, megabytes):
    small, large, text = folder / "small", folder / "large", folder / "text"
    block = bytes(range(256)) * (MEGABYTE // 256)
    small.write_bytes(b"\xff" + 3 * block)
    with large.open("wb") as file, text.open("wb") as written:
        for _ in range(megabytes):
            file.write(block)
            written.write("text ☃ ".encode() * (MEGABYTE // 9))
    limits = AttachmentLimits(message_bytes=2 * megabytes * MEGABYTE)
    grown = {}
    async with open_store(folder / "state.db", limits=limits) as store:
        for operation in (store_path, store_file, store_chunks, read, send):
            for source in (large, text):
                for _ in range(3):
                    await operation(store, small)  # threads and buffers are there afterwards
                peak()
                before = peak()
                await operation(store, source)
                grown[f"{operation.__name__} {source.name}"] = peak() - before
    with SessionStore(folder / "state.db") as store:
        store_blocking(store, small)
        peak()
        before = peak()
        store_blocking(store, large)
        grown["store_blocking large"] = peak() - before
    sys.stdout.write(json.dumps(grown))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
