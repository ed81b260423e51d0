"""Which stored files a caller may read."""

from __future__ import annotations

from hermes.adapters.http.credentials import Caller
from hermes.adapters.http.endpoints import Call
from hermes.errors import UnknownFile
from hermes.messages import FileRecord

UPLOADS = "files"
"""The name under which a namespace has its uploads. Conversations have names of other forms."""


def uploads_key(caller: Caller) -> str:
    """Return the key of the files that were uploaded before a message names them."""
    return caller.key(UPLOADS)


async def find_readable(call: Call, file_id: str) -> tuple[FileRecord, list[str]]:
    """Return a file, and the caller's keys that can read it.

    Raises `UnknownFile` if there is none, or if it belongs to others.
    """
    record = await call.runtime.api.find_file(file_id)
    keys = [] if record is None else [key for key in record.keys if call.caller.owns(key)]
    if record is None or not keys:
        raise UnknownFile(f"there is no file {file_id!r:.60}")
    return record, keys


async def readable_key(call: Call, file_id: str, *, first: str) -> str:
    """Return a key of the caller that can read a file: `first`, if it can.

    Raises `UnknownFile` if there is none.
    """
    _, keys = await find_readable(call, file_id)
    return first if first in keys else keys[0]
