"""When an update is confirmed, decided with a clock in the hands of the test."""

from __future__ import annotations

from itertools import pairwise

import attrs
import msgspec
import trio

from hermes.adapters.telegram import GroupPolicy
from hermes.adapters.telegram.poller import CONFIRM_SECONDS, LONGEST_PAUSE, Receiver
from hermes.errors import Draining, OutcomeUnknown, RetryAfter
from hermes.redaction.keys import Secret


@attrs.define
class Api:
    """Answers from a script: updates, errors, or a function; then ends the receiver."""

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
class Taking:
    """A runtime that takes everything."""

    taken: list = attrs.Factory(list)

    async def submit(self, inbound):
        await trio.lowlevel.checkpoint()
        self.taken.append(int(inbound.event_id.partition(":")[0]))


async def receive(*script, wall=lambda: 1000.0):
    api, runtime = Api(list(script)), Taking()
    async with trio.open_nursery() as nursery:
        await Receiver(api, runtime, None, GroupPolicy(), nursery, wall=wall).run()
    return api, runtime.taken


async def test_an_offset_is_sent_until_it_was_heard(autojump_clock):
    lost = OutcomeUnknown("lost")
    api, taken = await receive([5, 6], lost, lost, [], [9], [])
    assert api.offsets == [None, 7, 7, 7, None, 10, None]
    assert taken == [5, 6, 9]


async def test_a_lower_number_is_news(autojump_clock):
    api, taken = await receive([900], [], [3], [])
    assert api.offsets == [None, 901, None, 4, None]
    assert taken == [900, 3]


async def test_a_confirmation_that_nobody_hears_is_given_up_in_the_end(autojump_clock):
    now = [1000.0]

    def later():
        now[0] += CONFIRM_SECONDS + 1
        return OutcomeUnknown("a computer that sleeps")

    api, _ = await receive([5], later, [], wall=lambda: now[0])
    assert api.offsets == [None, 6, None, None]


async def test_updates_are_taken_in_their_order(autojump_clock):
    _, taken = await receive([7, 5, 6])
    assert taken == [5, 6, 7]


async def test_it_waits_longer_after_each_failure_and_as_long_as_it_is_told(autojump_clock):
    errors = [OutcomeUnknown("x") for _ in range(8)]
    api, _ = await receive(*errors, [], RetryAfter("wait", 17.0))
    waits = [round(b - a) for a, b in zip(api.at, api.at[1:], strict=False)]
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, 0, 17]


async def test_a_wait_without_end_has_one_and_is_told_of(autojump_clock):
    api, told = Api([RetryAfter("wait for ever", 1e300), RetryAfter("a moment", 5.0), []]), []
    async with trio.open_nursery() as nursery:
        await Receiver(api, Taking(), None, GroupPolicy(), nursery, tell=told.append).run()
    assert [later - before for before, later in pairwise(api.at)] == [3600.0, 5.0, 0.0]
    assert told == ["wait for ever", None]


def test_a_secret_that_looks_like_a_bots_token_is_hidden_everywhere():
    token = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
    assert token not in Secret("another").redact(f"https://api.telegram.org/bot{token}/getMe")
