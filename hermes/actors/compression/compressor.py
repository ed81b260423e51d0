"""Compression: sum up the middle of a conversation, and go on in a child session.

The lease saves paying for two summaries. What protects is `rotate`, which compares before it swaps:
so lease verbs that are missing or fail do not stop a compression. Nothing is deleted, and a summary
that fails or does not shrink the conversation changes nothing.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import trio
from msgspec.structs import replace

from hermes import user_code
from hermes.actors.budget import spent_by, with_calls
from hermes.config import CompressionConfig
from hermes.errors import CompressorFailed, Overloaded, StoreBusy, StoreFailed, StoreFull
from hermes.messages import (
    RUNTIME_HOLDER,
    CostTotals,
    InboxReply,
    Lease,
    Message,
    Rotated,
    Rotation,
    Skipped,
    Transcript,
    Usage,
)
from hermes.protocols import Compressor, Store, Summary, SummaryRequest
from hermes.transcript import compaction

log = logging.getLogger(__name__)

TURNS = frozenset({"turn", "background"})
RELEASE_PAUSES = (0.05, 0.2, 0.5)


class Compressed(msgspec.Struct, frozen=True):
    """The conversation goes on in a child."""

    rotated: Rotated
    before: int
    after: int

    @property
    def text(self) -> str:
        """For the user."""
        return _told(self.before, self.after)


class CompressionFailed(msgspec.Struct, frozen=True):
    """The summary failed; nothing was changed. `text` is for the user."""

    text: str


CompressionResult = Compressed | Skipped | CompressionFailed
Trigger = Literal["size", "overflow", "asked"]


class CompressionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to compress: the session as the actor knows it, and how."""

    session_key: str
    session_id: str
    epoch: int
    rotation_id: str
    occasion: Trigger = "size"
    focus: str | None = None
    keep_exchanges: int | None = None
    waiting: Sequence[Message] = ()
    """What will be said next, and is not stored yet: all that is stored may be summed up."""
    answer: Callable[[str], InboxReply] | None = None
    """Makes the answer to the command that asked for it, of what is said to the user."""


class CompressionState(msgspec.Struct, omit_defaults=True):
    """What a session's earlier compressions came to; kept in the store, so that a restart knows."""

    useless: int = 0
    failures: int = 0
    not_before: float = 0.0
    fresh: bool = False
    """Whether it was made by a compression, of which is not known yet whether it helped."""
    error: str | None = None


class SessionCompressor:
    """Compresses sessions, one call each; it keeps nothing between calls."""

    def __init__(
        self,
        store: Store,
        compressor: Compressor | None,
        config: CompressionConfig,
        wall: Callable[[], float],
        redact: Callable[[str], str] = str,
    ) -> None:
        self._store = store
        self._compressor = compressor
        self._config = config
        self._wall = wall
        self._redact = redact
        self._holder = f"{RUNTIME_HOLDER}{secrets.token_hex(8)}"
        self.limits = compaction.limits(
            config.window,
            max_output=config.max_output,
            share=config.share,
            tail_share=config.tail_share,
        )

    @property
    def possible(self) -> bool:
        """Whether conversations are compressed without being asked for it."""
        return self._compressor is not None and self._config.enabled

    async def begin(self) -> None:
        """This runtime begins: a compression that the last one died in hinders nobody."""
        try:
            await self._store.forget_runtimes()
        except (StoreFailed, StoreBusy, StoreFull):
            raise
        except Exception as error:  # noqa: BLE001 - an older store; leases end by themselves
            log.warning("leases of earlier runtimes were left: %s", user_code.loggable(error))

    async def standing(self, session_id: str) -> CompressionState:
        """What earlier compressions of this session came to."""
        noted = await self._store.get_meta(_note(session_id))
        return (
            CompressionState()
            if noted is None
            else msgspec.json.decode(noted, type=CompressionState)
        )

    def blocked(self, standing: CompressionState, occasion: Trigger = "size") -> str | None:
        """Why this session is not compressed on this occasion; None where it is.

        Whoever asks for it always has it tried. Where the model refuses the conversation as too
        long, it is tried unless the compressor itself has failed lately.
        """
        if occasion == "asked":
            return None
        if occasion == "size" and standing.useless >= self._config.max_useless:
            return f"{standing.useless} compressions in a row did not make it smaller"
        if standing.not_before > self._wall():
            return f"the last compression failed ({standing.error}), and is tried again later"
        return None

    async def run(self, job: CompressionJob) -> CompressionResult:
        """Compress, or say why not; nothing is changed unless the answer is `Compressed`."""
        if self._compressor is None:
            return Skipped("there is no compressor")
        standing = await self.standing(job.session_id)
        reason = self.blocked(standing, job.occasion)
        if reason is not None:
            return Skipped(reason)
        with trio.CancelScope(shield=True):  # a lease that nobody knows of would block for its time
            lease = await self._lease(job)
        if isinstance(lease, Skipped):
            return lease
        try:
            hindrance = await self._hindrance(job, standing)
            return hindrance or await self._under_lease(job, lease, standing)
        finally:
            with trio.CancelScope(shield=True):
                await self._release(lease)

    async def _hindrance(
        self, job: CompressionJob, standing: CompressionState
    ) -> CompressionResult | None:
        """Why no summary should be paid for, if there is a reason."""
        tip = await self._store.get_compression_tip(job.session_id)
        if tip != job.session_id:
            return await self._already(job, tip)
        if not standing.fresh or job.occasion != "size":
            return None
        # The last compression helped if any turn since was short enough, or nobody has counted.
        calls = await self._store.get_usage(job.session_id)
        counts = [prompt_tokens(call) for call in calls if call.purpose in TURNS]
        helped = not counts or min(counts) < self.limits.compress_at
        standing.useless = 0 if helped else standing.useless + 1
        standing.fresh = False
        await self._note(job.session_id, standing)
        reason = self.blocked(standing)
        return None if reason is None else Skipped(reason)

    async def _under_lease(
        self, job: CompressionJob, lease: Lease | None, standing: CompressionState
    ) -> CompressionResult:
        transcript = await self._store.load(job.session_id)
        cut = self._cut(job, transcript)
        if cut is None:
            return Skipped("there is nothing to sum up yet")
        charged: list[Usage] = []
        try:
            async with self._kept(lease):
                summary = await self._summarize(job, cut, charged)
        except BaseException as error:  # foreign code, or a deadline
            await self._book(job.session_id, charged)
            if (through := user_code.passing(error)) is not None:
                raise through from None
            if isinstance(user_code.leaf(error), StoreFailed):
                raise
            log.exception("%s was not compressed", job.session_id)
            return await self._failed(job, standing, user_code.leaf(error))
        charged += summary.usage
        messages = compaction.compacted(cut, summary.text)
        before = compaction.estimate_tokens(transcript.messages)
        after = compaction.estimate_tokens(messages)
        if not summary.text.strip() or not compaction.shrank(before, after, self._config.margin):
            await self._book(job.session_id, charged)
            return await self._useless(job, standing, "the summary would not make it smaller")
        rotation = self._rotation(job, lease, transcript, messages)
        if job.answer is not None:
            rotation = replace(rotation, answer=job.answer(_told(before, after)))
        answer = await self._store.rotate(rotation)
        await self._book(getattr(answer, "session_id", job.session_id), charged)
        if isinstance(answer, Skipped):
            return answer
        await self._write_down(job, standing, answer.session_id)
        return Compressed(answer, before, after)

    def _cut(self, job: CompressionJob, transcript: Transcript) -> compaction.CompactionPlan | None:
        """Keep the last exchange; where that alone is too long, only the reply of it."""
        cut = self._cut_at(job, transcript.messages)
        if not job.waiting or (cut is not None and self._fits(cut, job.waiting)):
            return cut
        # One is enough to be the last message, which always stays.
        wider = self._cut_at(job, [*transcript.messages, job.waiting[0]])
        return cut if wider is None else replace(wider, tail=wider.tail[:-1])

    def _cut_at(
        self, job: CompressionJob, messages: Sequence[compaction.AnyMessage]
    ) -> compaction.CompactionPlan | None:
        return compaction.cut(
            messages,
            tail_tokens=self.limits.tail_tokens,
            protect_first=self._config.protect_first,
            keep_exchanges=job.keep_exchanges,
            head_tokens=self.limits.tail_tokens,
        )

    def _fits(self, cut: compaction.CompactionPlan, waiting: Sequence[Message]) -> bool:
        left = compaction.estimate_tokens([*cut.head, *cut.tail, *waiting])
        return left + self.limits.summary_tokens < self.limits.compress_at

    async def _book(self, session_id: str, calls: Sequence[Usage]) -> None:
        """What was paid for is in the ledger, also where nothing came of it."""
        with trio.CancelScope(shield=True):
            try:
                booked: list[Usage] = [replace(call, purpose="summary") for call in calls]
                await self._store.book(session_id, booked)
            except StoreFailed:
                raise
            except Exception:
                log.exception("what a summary of %s has cost is not in the ledger", session_id)

    async def _write_down(
        self, job: CompressionJob, standing: CompressionState, child: str
    ) -> None:
        """What it came to; it has happened, whether this can be stored or not."""
        try:
            await self._note(job.session_id, None)
            if job.occasion == "size":
                await self._note(child, CompressionState(useless=standing.useless, fresh=True))
        except StoreFailed:
            raise
        except Exception:
            log.exception("the compression of %s could not be accounted for", job.session_id)

    async def _already(self, job: CompressionJob, tip: str) -> CompressionResult:
        """The session goes on elsewhere; by our own earlier try, that is a success."""
        empty = Transcript(await self._store.head(job.session_id), [])
        answer = await self._store.rotate(self._rotation(job, None, empty, []))
        if isinstance(answer, Rotated):
            return Compressed(answer, 0, 0)
        return Skipped("it was compressed already", winner=tip)

    def _rotation(
        self,
        job: CompressionJob,
        lease: Lease | None,
        transcript: Transcript,
        messages: list[Message],
    ) -> Rotation:
        return Rotation(
            session_id=job.session_id,
            messages=messages,
            rotation_id=job.rotation_id,
            rewrites=transcript.head.rewrites,
            upto=transcript.messages[-1].id if transcript.messages else 0,
            session_key=job.session_key,
            epoch=job.epoch,
            lease=lease,
        )

    async def _summarize(
        self, job: CompressionJob, cut: compaction.CompactionPlan, charged: list[Usage]
    ) -> Summary:
        assert self._compressor is not None

        async def spent() -> CostTotals:
            booked = await spent_by(self._store, job.session_id)
            return with_calls(booked, charged)

        request = SummaryRequest(
            session_id=job.session_id,
            messages=cut.middle,
            previous=cut.previous,
            focus=job.focus,
            max_tokens=self.limits.summary_tokens,
            spent=spent,
            charge=charged.append,
        )
        with trio.fail_after(self._config.summary_timeout):
            summary: object = await self._compressor.summarize(request)
        if not isinstance(summary, Summary) or not isinstance(summary.text, str):
            raise TypeError(f"a compressor answers with a Summary, not {summary!r:.100}")
        return summary

    async def _lease(self, job: CompressionJob) -> Lease | Skipped | None:
        """The lease; Skipped while another holds it; None where leases do not work."""
        session_id = job.session_id
        holder = f"{self._holder}:{job.rotation_id}"
        try:
            lease = await self._store.acquire_lease(session_id, holder, self._config.lease_timeout)
            if lease is not None:
                return lease
            other = await self._store.get_compression_lock_holder(session_id)
        except StoreFailed:
            raise
        except Exception as error:  # noqa: BLE001 - an older store, a damaged table: `rotate` protects
            log.warning("compressing %s without a lease: %s", session_id, user_code.loggable(error))
            return None
        return Skipped("another compression of it runs", holder=other)

    @asynccontextmanager
    async def _kept(self, lease: Lease | None) -> AsyncIterator[None]:
        """Keep the lease alive during the block."""
        if lease is None:
            yield
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._refresh, lease)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    async def _refresh(self, lease: Lease) -> None:
        while True:
            await trio.sleep(self._config.lease_timeout / 3)
            try:
                await self._store.refresh_compression_lock(
                    lease.session_id, lease.holder, self._config.lease_timeout
                )
            except StoreFailed:
                raise
            except Exception as error:  # noqa: BLE001 - it ends by itself, and `rotate` protects
                log.warning(
                    "the lease of %s was not renewed: %s",
                    lease.session_id,
                    user_code.loggable(error),
                )

    async def _release(self, lease: Lease | None) -> None:
        if lease is None:
            return
        for pause in RELEASE_PAUSES:
            try:
                await self._store.release_compression_lock(lease.session_id, lease.holder)
            except StoreFailed:
                raise
            except (StoreBusy, StoreFull, Overloaded):
                await trio.sleep(pause)
            except Exception as error:  # noqa: BLE001 - an older store, a damaged table
                log.warning(
                    "the lease of %s was not released: %s",
                    lease.session_id,
                    user_code.loggable(error),
                )
                return
            else:
                return
        log.warning("the lease of %s ends by itself", lease.session_id)

    async def _useless(
        self, job: CompressionJob, standing: CompressionState, reason: str
    ) -> Skipped:
        if job.occasion == "size":
            standing.useless += 1
            await self._note(job.session_id, standing)
        return Skipped(reason)

    async def _failed(
        self, job: CompressionJob, standing: CompressionState, error: BaseException
    ) -> CompressionFailed:
        standing.failures += 1
        standing.not_before = self._wall() + self._pause(standing.failures, error)
        standing.error = self._redact(_why(error))
        await self._note(job.session_id, standing)
        return CompressionFailed(
            f"The conversation could not be compressed: {standing.error}. Nothing was changed; "
            "/compress tries again."
        )

    def _pause(self, failures: int, error: BaseException) -> float:
        """How long not to try again: longer with each failure, and as long as it takes."""
        pauses = self._config.cooldowns or (0.0,)
        pause = pauses[min(failures, len(pauses)) - 1]
        if isinstance(error, CompressorFailed):
            pause = max(pauses) if error.lasting else max(pause, error.retry_after or 0.0)
        return pause

    async def _note(self, session_id: str, standing: CompressionState | None) -> None:
        value = None if standing is None else msgspec.json.encode(standing).decode()
        await self._store.set_meta(_note(session_id), value)


def prompt_tokens(call: Usage) -> int:
    """How much of the window a call took, as its provider counted it."""
    return call.input_tokens + call.cache_read_tokens + call.cache_write_tokens


def _told(before: int, after: int) -> str:
    return f"Compressed from about {before} to {after} tokens."


def _note(session_id: str) -> str:
    return f"compression:{session_id}"


def _why(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return "the summary took too long"
    if isinstance(error, CompressorFailed):
        return str(error)[:300]
    return user_code.describe(error)[:300]
