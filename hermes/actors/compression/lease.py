"""The compression lease. It avoids paying for two summaries at once.

Correctness does not depend on it: `rotate` compares before it writes. So a store whose lease verbs
are missing or fail does not prevent a compression.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from hermes.background import cancel, start_soon
from hermes.errors import Overloaded, StoreBusy, StoreFailed, StoreFull
from hermes.messages import RUNTIME_HOLDER, Lease, Skipped
from hermes.protocols import CompressionStore
from hermes.user_code import contained, loggable

log: logging.Logger = logging.getLogger(__name__)

RELEASE_DELAYS = (0.05, 0.2, 0.5)


class LeaseKeeper:
    """Acquires, renews and releases the leases of one runtime."""

    def __init__(self, store: CompressionStore, node: Callable[[], int], seconds: float) -> None:
        """`node` returns the id of this process, which may change."""
        self._store = store
        self._node = node
        self._token = secrets.token_hex(8)
        self._seconds = seconds
        self._in_use: set[str] = set()
        """The holder names of the compressions that are running."""

    async def forget_earlier_runtimes(self, living: Sequence[int]) -> None:
        """Release the leases that earlier runtimes left behind, and none of living nodes."""
        with contained(StoreFailed, StoreBusy, StoreFull) as caught:
            await self._store.forget_runtimes(living)
        if caught.error is not None:  # an older store: leases expire by themselves
            log.warning("leases of earlier runtimes remain: %s", loggable(caught.error))

    async def acquire(self, session_id: str, rotation_id: str) -> Lease | Skipped | None:
        """Return the lease; `Skipped` while another holder has it; None if leases do not work."""
        holder = f"{RUNTIME_HOLDER}{self._node()}:{self._token}:{rotation_id}"
        self._in_use.add(holder)
        lease = None
        try:
            lease = await self._acquire(session_id, holder)
        finally:
            if not isinstance(lease, Lease):
                self._in_use.discard(holder)
        return lease

    async def _acquire(self, session_id: str, holder: str) -> Lease | Skipped | None:
        with contained(StoreFailed) as caught:
            lease = await self._store.acquire_lease(session_id, holder, self._seconds)
            if lease is not None:
                return lease
            other = await self._store.get_compression_lock_holder(session_id)
            if not self._is_left_over(other):
                return Skipped("another compression is running", holder=other)
            log.warning("compressing %s without a lease: %s was not released", session_id, other)
            return None
        log.warning("compressing %s without a lease: %s", session_id, _loggable(caught))
        return None

    def _is_left_over(self, holder: str | None) -> bool:
        """Whether a lease belongs to an attempt of this runtime that has ended."""
        own = holder is not None and f":{self._token}:" in holder
        return own and holder not in self._in_use

    @asynccontextmanager
    async def renewed(self, lease: Lease | None) -> AsyncIterator[None]:
        """Renew the lease during the block."""
        if lease is None:
            yield
            return
        async with trio.open_nursery() as nursery:
            start_soon(nursery, self._renew, lease)
            try:
                yield
            finally:
                cancel(nursery.cancel_scope)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await trio.sleep(self._seconds / 3)
            with contained(StoreFailed) as caught:
                await self._store.refresh_compression_lock(
                    lease.session_id, lease.holder, self._seconds
                )
            if caught.error is not None:
                log.warning("lease of %s not renewed: %s", lease.session_id, _loggable(caught))

    async def release(self, lease: Lease | None) -> None:
        """Release the lease; if that fails, it expires by itself."""
        if lease is None:
            return
        self._in_use.discard(lease.holder)
        error: BaseException | None = None
        for delay in RELEASE_DELAYS:
            with contained(StoreFailed) as caught:
                await self._store.release_compression_lock(lease.session_id, lease.holder)
            error = caught.error
            if not isinstance(error, StoreBusy | StoreFull | Overloaded):
                break
            await trio.sleep(delay)
        if error is not None:
            log.warning("lease of %s not released: %s", lease.session_id, loggable(error))


def _loggable(caught: contained) -> str:
    assert caught.error is not None
    return loggable(caught.error)
