"""Compression: summarize the middle of a session, and continue in a child session.

Nothing is deleted. A summary that fails, or that does not make the conversation smaller, changes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
import trio
from msgspec.structs import replace

from hermes.actors.budget import session_costs, with_calls
from hermes.actors.compression.lease import LeaseKeeper
from hermes.actors.compression.types import (
    Compressed,
    CompressionFailed,
    CompressionJob,
    CompressionResult,
    CompressionState,
    Trigger,
)
from hermes.config import CompressionConfig
from hermes.errors import CompressorFailed, NotOwner, StoreFailed
from hermes.messages import (
    CostTotals,
    Lease,
    Message,
    Rotated,
    Rotation,
    Skipped,
    Transcript,
    Usage,
)
from hermes.protocols import CompressionStore, Compressor, Store, Summary, SummaryRequest
from hermes.redaction.slices import redact_text
from hermes.texts import ENGLISH, Texts
from hermes.transcript import compaction
from hermes.transcript.compaction import CompactionPlan
from hermes.transcript.tokens import AnyMessage, estimate_tokens
from hermes.user_code import contained, leaf, new_reference

log: logging.Logger = logging.getLogger(__name__)

MAX_ERROR = 300
DAY = 86400.0
"""Characters of a compressor's error that users are shown."""
_TURN_PURPOSES = frozenset({"turn", "background"})


class SessionCompressor:
    """Compresses sessions. What it remembers of them is in the store."""

    def __init__(
        self,
        store: Store,
        compressor: Compressor | None,
        config: CompressionConfig,
        wall: Callable[[], float],
        redact: Callable[[str], str] = str,
        texts: Texts = ENGLISH,
    ) -> None:
        self._store = store
        self._compressor = compressor
        self._config = config
        self._wall = wall
        self._redact = redact
        self._texts = texts
        self._leases = LeaseKeeper(store, lambda: store.cluster.node, config.lease_timeout)
        self._unsaved: dict[str, CompressionState] = {}
        """States that could not be stored."""
        self.attempts: int = 0
        """How many attempts have ended. Unlike times, it orders calls if the clock is set back."""
        self.limits: compaction.Limits = compaction.limits(
            config.window,
            max_output=config.max_output,
            share=config.share,
            tail_share=config.tail_share,
        )

    @property
    def automatic(self) -> bool:
        """Whether sessions are compressed without a request."""
        return self._compressor is not None and self._config.enabled

    async def begin(self) -> None:
        """Release the leases of earlier runtimes."""
        cluster = self._store.cluster
        await self._leases.forget_earlier_runtimes([n for n in cluster.nodes if n != cluster.node])

    async def state_of(self, session_id: str) -> CompressionState:
        """Return the outcome of earlier compressions of a session."""
        if session_id in self._unsaved:
            return self._unsaved[session_id]
        stored = await self._store.get_meta(_meta_name(session_id))
        if stored is None:
            return CompressionState()
        return msgspec.json.decode(stored, type=CompressionState)

    def suspended(self, state: CompressionState, trigger: Trigger = "size") -> str | None:
        """Return why a session is not compressed for this trigger; None if it is.

        A request is always tried. A refusal of the model is tried unless the compressor itself
        failed recently.
        """
        if trigger == "asked":
            return None
        if trigger == "size" and state.useless >= self._config.max_useless:
            return self._texts.compressions_useless.format(number=state.useless)
        longest = max((*self._config.cooldowns, 2 * DAY))  # a later date is of a wrong clock
        if 0.0 < state.not_before - self._wall() <= longest:
            return self._texts.compression_later.format(error=state.error)
        return None

    async def run(self, job: CompressionJob) -> CompressionResult:
        """Compress a session. Nothing is changed unless the result is `Compressed`."""
        if self._compressor is None:
            return Skipped(self._texts.no_compressor)
        state = await self.state_of(job.session_id)
        reason = self.suspended(state, job.trigger)
        if reason is not None:
            return Skipped(reason)
        with trio.CancelScope(shield=True):  # a lease that nobody knows of would block for its time
            lease = await self._leases.acquire(job.session_id, job.rotation_id)
        if isinstance(lease, Skipped):
            return replace(lease, reason=self._texts.compression_running)
        try:
            obstacle = await self._check(job, state)
            return obstacle or await self._compress(job, lease, state)
        finally:
            with trio.CancelScope(shield=True):
                await self._leases.release(lease)

    async def _check(
        self, job: CompressionJob, state: CompressionState
    ) -> CompressionResult | None:
        """Return why no summary should be paid for, if there is a reason."""
        tip = await self._store.get_compression_tip(job.session_id)
        if tip != job.session_id:
            return await self._already_rotated(job, tip)
        if not state.fresh or job.trigger != "size":
            return None
        # The last compression helped if any turn since was short enough, or nothing was counted.
        calls = await self._store.get_usage(job.session_id)
        counts = [prompt_tokens(call) for call in calls if call.purpose in _TURN_PURPOSES]
        helped = not counts or min(counts) < self.limits.compress_at
        state.useless = 0 if helped else state.useless + 1
        state.fresh = False
        await self._save(job.session_id, state)
        reason = self.suspended(state)
        return None if reason is None else Skipped(reason)

    async def _compress(
        self, job: CompressionJob, lease: Lease | None, state: CompressionState
    ) -> CompressionResult:
        transcript = await self._store.load(job.session_id)
        plan = self._plan(job, transcript)
        if plan is None:
            return Skipped(self._texts.nothing_to_compress)
        charged: list[Usage] = []
        summary = await self._summarize(job, lease, plan, charged)
        if isinstance(summary, BaseException):
            return await self._failed(job, state, summary)
        messages = compaction.compacted(plan, summary.text)
        before, after = estimate_tokens(transcript.messages), estimate_tokens(messages)
        if not summary.text.strip() or not compaction.shrank(before, after, self._config.margin):
            await self._book(job.session_id, charged)
            return await self._useless(job, state, self._texts.compression_useless)
        rotation = self._rotation(job, lease, transcript, messages)
        if job.answer is not None:
            text = self._texts.compressed.format(before=before, after=after)
            rotation = replace(rotation, answer=job.answer(text))
        rotated = await self._rotate(job.store or self._store, rotation, charged)
        if isinstance(rotated, Skipped):
            return await self._refused(job, state, rotated)
        if isinstance(rotated, BaseException):
            return await self._failed(job, state, rotated)
        await self._record_success(job, state, rotated.session_id)
        return Compressed(rotated, before, after)

    # The summary

    def _plan(self, job: CompressionJob, transcript: Transcript) -> CompactionPlan | None:
        """Keep the last exchange; if that alone is too long, keep only its reply."""
        plan = self._plan_for(job, transcript.messages)
        if not job.waiting or (plan is not None and self._fits(plan, job.waiting)):
            return plan
        # One waiting message is enough: it is the last message, which is always kept.
        wider = self._plan_for(job, [*transcript.messages, job.waiting[0]])
        return plan if wider is None else replace(wider, tail=wider.tail[:-1])

    def _plan_for(
        self, job: CompressionJob, messages: Sequence[AnyMessage]
    ) -> CompactionPlan | None:
        return compaction.plan(
            messages,
            tail_tokens=self.limits.tail_tokens,
            protect_first=self._config.protect_first,
            keep_exchanges=job.keep_exchanges,
            head_tokens=self.limits.tail_tokens,
        )

    def _fits(self, plan: CompactionPlan, waiting: Sequence[Message]) -> bool:
        kept = estimate_tokens([*plan.head, *plan.tail, *waiting])
        return kept + self.limits.summary_tokens < self.limits.compress_at

    async def _summarize(
        self,
        job: CompressionJob,
        lease: Lease | None,
        plan: CompactionPlan,
        charged: list[Usage],
    ) -> Summary | BaseException:
        """Return the summary, or what the compressor raised. `charged` gets the provider calls."""
        try:
            with contained(StoreFailed) as caught:
                async with self._leases.renewed(lease):
                    summary = await self._call_compressor(job, plan, charged)
                charged += summary.usage
                return summary
        except BaseException:
            await self._book(job.session_id, charged)
            raise
        assert caught.error is not None
        await self._book(job.session_id, charged)
        return caught.error

    async def _call_compressor(
        self, job: CompressionJob, plan: CompactionPlan, charged: list[Usage]
    ) -> Summary:
        assert self._compressor is not None

        async def spent() -> CostTotals:
            return with_calls(await session_costs(self._store, job.session_id), charged)

        request = SummaryRequest(
            session_id=job.session_id,
            messages=plan.middle,
            previous=plan.previous,
            focus=job.focus,
            max_tokens=self.limits.summary_tokens,
            spent=spent,
            charge=charged.append,
            texts=self._texts,
        )
        with trio.fail_after(self._config.summary_timeout):
            summary: object = await self._compressor.summarize(request)
        if not isinstance(summary, Summary) or not isinstance(summary.text, str):
            raise TypeError(f"a compressor must return a Summary, not {summary!r:.100}")
        return replace(summary, text=await redact_text(summary.text, self._redact))

    # The rotation

    async def _already_rotated(self, job: CompressionJob, tip: str) -> CompressionResult:
        """The session has a child. If our own earlier attempt made it, that is a success."""
        empty = Transcript(await self._store.head(job.session_id), [])
        store = job.store or self._store
        rotated = await store.rotate(self._rotation(job, None, empty, []))
        if isinstance(rotated, Rotated):
            return Compressed(rotated, 0, 0)
        return Skipped(self._texts.already_compressed, winner=tip)

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

    async def _rotate(
        self, store: CompressionStore, rotation: Rotation, charged: Sequence[Usage]
    ) -> Rotated | Skipped | BaseException:
        """Return the result of the rotation, or its error; the summary is paid for in any case."""
        payer = rotation.session_id
        try:
            with contained(StoreFailed, NotOwner) as caught:
                rotated = await store.rotate(rotation)
                payer = rotated.session_id if isinstance(rotated, Rotated) else payer
                return rotated
        finally:
            await self._book(payer, charged)
        assert caught.error is not None
        return caught.error

    # What is recorded

    async def _book(self, session_id: str, calls: Sequence[Usage]) -> None:
        """Record the provider calls, even if nothing came of them."""
        with trio.CancelScope(shield=True), contained(StoreFailed) as caught:
            await self._store.book(session_id, [replace(c, purpose="summary") for c in calls])
        if caught.error is not None:
            log.error("the cost of a summary was not recorded", exc_info=caught.error)

    async def _record_success(
        self, job: CompressionJob, state: CompressionState, child: str
    ) -> None:
        """Move the state to the child. The rotation stands, whether this succeeds or not."""
        await self._save(job.session_id, None)
        if job.trigger == "size":
            await self._save(child, CompressionState(useless=state.useless, fresh=True))

    async def _useless(self, job: CompressionJob, state: CompressionState, reason: str) -> Skipped:
        if job.trigger == "size":
            state.useless += 1
            await self._save(job.session_id, state)
        return Skipped(reason, paid=True)

    async def _refused(
        self, job: CompressionJob, state: CompressionState, skipped: Skipped
    ) -> Skipped:
        """Count a summary that came too late as a failure: the next one may come too late, too."""
        log.warning("%s was not compressed: %s", job.session_id, skipped.text)
        reason = self._too_late(skipped)
        await self._suspend(job, state, self._cooldown(state.failures + 1), reason)
        return replace(skipped, reason=reason, paid=True)

    def _too_late(self, skipped: Skipped) -> str:
        """Return why the store refused a summary, for the user."""
        if skipped.compressed:
            return self._texts.already_compressed
        lost = skipped.holder is not None
        return self._texts.compression_running if lost else self._texts.compression_outdated

    async def _failed(
        self, job: CompressionJob, state: CompressionState, error: BaseException
    ) -> CompressionFailed:
        reference, text = new_reference(), "%s was not compressed (reference %s)"
        log.error(text, job.session_id, reference, exc_info=error)
        cooldown = self._cooldown(state.failures + 1, leaf(error))
        reason = self._reason(leaf(error), reference)
        await self._suspend(job, state, cooldown, reason)
        return CompressionFailed(reason)

    def _reason(self, error: BaseException, reference: str) -> str:
        """Return what the user is told: what the compressor reported, or only a reference."""
        if isinstance(error, trio.TooSlowError):
            return self._texts.compression_timeout
        if isinstance(error, CompressorFailed):
            with contained() as caught:
                return self._redact(str(error))[:MAX_ERROR]
            log.error("the redaction failed (reference %s)", reference, exc_info=caught.error)
        return self._texts.compression_unexpected.format(reference=reference)

    async def _suspend(
        self, job: CompressionJob, state: CompressionState, seconds: float, reason: str
    ) -> None:
        state.failures += 1
        state.not_before = self._wall() + seconds
        state.error = reason
        await self._save(job.session_id, state)

    def _cooldown(self, failures: int, error: BaseException | None = None) -> float:
        """Return how long automatic attempts are suspended."""
        cooldowns = self._config.cooldowns or (0.0,)
        cooldown = cooldowns[min(failures, len(cooldowns)) - 1]
        if isinstance(error, CompressorFailed):
            cooldown = max(cooldowns) if error.lasting else max(cooldown, error.retry_after or 0.0)
        return cooldown

    async def _save(self, session_id: str, state: CompressionState | None) -> None:
        """Store the state; if that fails, it is kept in memory."""
        value = None if state is None else msgspec.json.encode(state).decode()
        with contained(StoreFailed) as caught:
            await self._store.set_meta(_meta_name(session_id), value)
            self._unsaved.pop(session_id, None)
        if caught.error is not None:
            log.error("the state of %s was not recorded", session_id, exc_info=caught.error)
            self._unsaved[session_id] = state or CompressionState()


def prompt_tokens(call: Usage) -> int:
    """Return how many tokens of the context window a call took, as its provider counted them."""
    return call.input_tokens + call.cache_read_tokens + call.cache_write_tokens


def _meta_name(session_id: str) -> str:
    return f"compression:{session_id}"
