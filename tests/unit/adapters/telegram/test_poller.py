"""When updates are confirmed, and how long the poller waits after failures."""

from __future__ import annotations

from itertools import pairwise

import attrs
import msgspec
import trio

from hermes.adapters.telegram import GroupPolicy
from hermes.adapters.telegram.poller import CONFIRM_TIMEOUT, MAX_RETRY_DELAY, Poller
from hermes.errors import ActorStopped, Draining, OutcomeUnknown, RetryAfter


@attrs.define
class Api:
    """Answers from a script of update ids, errors or functions; then ends the poller."""

    script: list
    offsets: list = attrs.Factory(list)
    at: list = attrs.Factory(list)

    async def call(self, method, params, *, wait=0.0):
        await trio.lowlevel.checkpoint()
        if method == "getMe":
            return msgspec.Raw(b'{"id":42,"username":"hermes_bot"}')
        self.offsets.append(params["offset"])
        self.at.append(trio.current_time())
        if not self.script:
            raise Draining("over")
        step = self.script.pop(0)
        step = step() if callable(step) else step
        if isinstance(step, Exception):
            raise step
        posts = [{"update_id": n, "message": post(n)} for n in step]
        return msgspec.Raw(msgspec.json.encode(posts))


def post(number):
    return {"message_id": number, "chat": {"id": 7}, "from": {"id": 7}, "text": "x"}


@attrs.define
class Runtime:
    """A runtime that accepts everything."""

    submitted: list = attrs.Factory(list)

    async def submit(self, inbound):
        await trio.lowlevel.checkpoint()
        self.submitted.append(int(inbound.event_id.partition(":")[0]))


def new_poller(api, runtime, nursery, **options):
    return Poller(
        api=api, runtime=runtime, sender=None, group_policy=GroupPolicy(), nursery=nursery,
        **options,
    )  # fmt: skip


async def receive(*script, wall=lambda: 1000.0):
    api, runtime = Api(list(script)), Runtime()
    async with trio.open_nursery() as nursery:
        await new_poller(api, runtime, nursery, wall=wall).run()
    return api, runtime.submitted


async def test_a_runtime_that_has_ended_ends_the_poller(autojump_clock):
    api, _ = await receive(ActorStopped("the runtime has ended"))
    assert len(api.offsets) == 1


async def test_an_offset_is_sent_until_a_poll_succeeds(autojump_clock):
    lost = OutcomeUnknown("lost")
    api, submitted = await receive([5, 6], lost, lost, [], [9], [])
    assert api.offsets == [None, 7, 7, 7, None, 10, None]
    assert submitted == [5, 6, 9]


async def test_a_lower_update_id_is_processed(autojump_clock):
    api, submitted = await receive([900], [], [3], [])
    assert api.offsets == [None, 901, None, 4, None]
    assert submitted == [900, 3]


async def test_a_confirmation_that_fails_for_long_is_dropped(autojump_clock):
    now = [1000.0]

    def later():
        now[0] += CONFIRM_TIMEOUT + 1
        return OutcomeUnknown("the computer was asleep")

    api, _ = await receive([5], later, [], wall=lambda: now[0])
    assert api.offsets == [None, 6, None, None]


async def test_updates_are_processed_in_order(autojump_clock):
    _, submitted = await receive([7, 5, 6])
    assert submitted == [5, 6, 7]


async def test_the_delay_grows_with_each_failure_and_follows_retry_after(autojump_clock):
    errors = [OutcomeUnknown("x") for _ in range(8)]
    api, _ = await receive(*errors, [], RetryAfter("wait", 17.0))
    waits = [round(b - a) for a, b in zip(api.at, api.at[1:], strict=False)]
    assert waits == [1, 2, 4, 8, 16, 32, MAX_RETRY_DELAY, MAX_RETRY_DELAY, 0, 17]


async def test_a_very_long_retry_after_is_limited_and_reported(autojump_clock):
    api, problems = Api([RetryAfter("wait for ever", 1e300), RetryAfter("a moment", 5.0), []]), []
    async with trio.open_nursery() as nursery:
        await new_poller(api, Runtime(), nursery, on_problem=problems.append).run()
    assert [later - before for before, later in pairwise(api.at)] == [3600.0, 5.0, 0.0]
    assert problems == ["wait for ever", None]
