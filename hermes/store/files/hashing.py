"""Hash a file while it is written."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

SMALL: Final = 1 << 16
"""Chunks below this size are hashed at once: a thread would cost more."""
MAX_AHEAD: Final = 8
"""How many chunks may wait for the thread, so how much memory they take."""


class Hashing:
    """The SHA-256 hash of chunks; large ones are hashed in a thread, beside what follows.

    Chunks must not be changed afterwards. Call `finish`, or `close`.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def add(self, chunk: bytes | bytearray) -> None:
        """Append a chunk."""
        if self._thread is None:
            if len(chunk) < SMALL:
                self._hash.update(chunk)
                return
            self._thread = ThreadPoolExecutor(1)
        if len(self._waiting) == MAX_AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._hash.update, chunk))

    def finish(self) -> str:
        """Return the hash of all chunks, in hexadecimal digits."""
        while self._waiting:
            self._waiting.popleft().result()
        self.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
