"""What every adapter keeps to: a message is sent once, and each failure is called by its name.

A platform joins with a class like `Memory`, which says how it is made to fail.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import replace

from hermes.actors.delivery.split import utf16
from hermes.errors import MessageRefused, OutcomeUnknown, RetryAfter, Unsendable
from hermes.messages import OutboxRow
from hermes.testing import MemoryAdapter

NOT_TAKEN = (Unsendable, RetryAfter, MessageRefused)


class Memory:
    """The fake of `hermes.testing`, and the platform behind it."""

    def __init__(self):
        self.hung = None
        self.adapter = self._Hanging(self)

    class _Hanging(MemoryAdapter):
        def __init__(self, memory):
            super().__init__(limit=4096)
            self.memory = memory

        async def send(self, row):
            if self.memory.hung is not None:
                await self.memory.hung.wait()
            await super().send(row)

    @classmethod
    @asynccontextmanager
    async def open(cls):
        """The platform, with its adapter ready to send."""
        yield cls()

    @property
    def chats(self):
        """Names of chats that the platform knows."""
        return ["1", "2", "3"]

    @property
    def taken(self):
        """What the platform has, as people see it: chat and text, in order."""
        return [(row.body["chat_id"], row.body["text"]) for row in self.adapter.sent]

    def lose_chat(self):
        """The next message finds its chat gone; the one after that finds it again."""
        self.adapter.errors.append(Unsendable("the bot was blocked"))

    def flood(self, seconds):
        """The next message is not taken, because there were too many."""
        self.adapter.errors.append(RetryAfter("too many requests", seconds))

    def refuse(self):
        """The next message is not taken, because the platform does not like it."""
        self.adapter.errors.append(MessageRefused("it is no message"))

    def lose_answer(self):
        """The next message is taken, but its answer never comes."""
        self.adapter.late_errors.append(OutcomeUnknown("the connection was closed"))

    def go_away(self):
        """The next message finds no platform at all."""
        self.adapter.errors.append(ConnectionRefusedError("nobody listens"))

    def hang(self):
        """From now on the platform says nothing."""
        self.hung = trio.Event()


@pytest.fixture(params=[Memory], ids=lambda kind: kind.__name__)
async def platform(request):
    async with request.param.open() as opened:
        yield opened


def row(platform, text="hello", chat=0, **fields):
    """A reply as the outbox has it."""
    adapter, place = platform.adapter, platform.chats[chat]
    body = {
        "kind": "reply",
        "text": text,
        "platform": adapter.platform,
        "account": getattr(adapter, "account", None) or "",
        "chat_id": place,
        "thread_id": None,
        "user_id": "u",
        "session_id": "s",
        "reply_to": None,
    }
    lane = f"{adapter.platform}//{place}/"
    return replace(OutboxRow(1, "k", 1, lane, body, "sending", 1, recovered=False), **fields)


async def failure(platform, message=None):
    """What `send` raises."""
    with pytest.raises(Exception) as raised:
        await platform.adapter.send(message or row(platform))
    return raised.value


async def test_it_says_what_it_is(platform):
    adapter = platform.adapter
    assert isinstance(adapter.platform, str)
    assert adapter.platform
    assert isinstance(getattr(adapter, "account", None), str | None)
    limit = getattr(adapter, "limit", None)
    assert limit is None or limit >= 100


async def test_the_platform_has_the_message_once_when_send_returns(platform):
    await platform.adapter.send(row(platform))
    assert platform.taken == [(platform.chats[0], "hello")]


async def test_each_message_is_sent_where_it_belongs_in_the_order_of_its_chat(platform):
    async def speak(chat):
        for number in range(3):
            await platform.adapter.send(row(platform, f"{chat}:{number}", chat))

    async with trio.open_nursery() as nursery:
        for chat in range(3):
            nursery.start_soon(speak, chat)
    for chat, name in enumerate(platform.chats[:3]):
        texts = [text for place, text in platform.taken if place == name]
        assert texts == [f"{chat}:{number}" for number in range(3)]


@pytest.mark.parametrize("text", ["*_[]()~`>#+-=|{}.!\\", "<b>&amp;", "日本語 👩‍👩‍👧", " a\n\n\tb"])
async def test_a_text_arrives_as_it_is(platform, text):
    await platform.adapter.send(row(platform, text))
    [(_, taken)] = platform.taken
    assert taken.strip() == text.strip()


async def test_a_text_of_the_longest_length_is_one_message(platform):
    limit = getattr(platform.adapter, "limit", None) or 1000
    for text in ("x" * limit, "👍" * (limit // 2), "." * limit):
        assert utf16(text) <= limit
        await platform.adapter.send(row(platform, text))
    assert len(platform.taken) == 3


async def test_a_chat_that_is_gone_is_told_apart_and_tried_again_when_asked(platform):
    platform.lose_chat()
    assert isinstance(await failure(platform), Unsendable)
    assert platform.taken == []
    await platform.adapter.send(row(platform))
    assert len(platform.taken) == 1


async def test_a_platform_that_wants_to_be_left_alone_says_for_how_long(platform):
    platform.flood(2)
    error = await failure(platform)
    assert isinstance(error, RetryAfter)
    assert 0 < error.seconds <= 2
    assert platform.taken == []


async def test_a_message_that_is_refused_is_told_apart(platform):
    platform.refuse()
    assert isinstance(await failure(platform), MessageRefused)
    assert platform.taken == []


async def test_nobody_says_that_nothing_was_taken_where_it_may_have_been(platform):
    platform.lose_answer()
    assert not isinstance(await failure(platform), NOT_TAKEN)
    assert len(platform.taken) == 1, "and it is not sent again by the adapter itself"


async def test_a_platform_that_is_away_is_no_chat_that_is_gone(platform):
    platform.go_away()
    assert not isinstance(await failure(platform), Unsendable | MessageRefused)
    assert platform.taken == []
    await platform.adapter.send(row(platform))
    assert len(platform.taken) == 1


async def test_a_send_can_be_cancelled(platform):
    platform.hang()
    with trio.move_on_after(0.05) as scope:
        await platform.adapter.send(row(platform))
    assert scope.cancelled_caught
