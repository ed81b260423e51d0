"""The contract of adapters: a message is sent once, and each failure has its own exception.

To add a platform, write a class like `Memory` that can cause each failure, and add it to the
fixture `platform`.
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
    """The adapter of `hermes.testing`, and the platform behind it."""

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
    def account(self):
        """The account of the adapter, or None."""
        return self.adapter.account

    @property
    def limit(self):
        """The longest text of one message in UTF-16 units, or None."""
        return self.adapter.limit

    @property
    def chats(self):
        """Ids of chats that the platform knows."""
        return ["1", "2", "3"]

    @property
    def taken(self):
        """The messages that the platform has, as users see them: chat and text, in order."""
        return [(row.body["chat_id"], row.body["text"]) for row in self.adapter.sent]

    def lose_chat(self):
        """The chat of the next message is gone; the one after that finds it again."""
        self.adapter.errors.append(Unsendable("the bot was blocked"))

    def flood(self, seconds):
        """The next message is refused because there were too many."""
        self.adapter.errors.append(RetryAfter("too many requests", seconds))

    def refuse(self):
        """The next message is refused because of its content."""
        self.adapter.errors.append(MessageRefused("invalid message"))

    def lose_answer(self):
        """The next message is taken, but the response is lost."""
        self.adapter.late_errors.append(OutcomeUnknown("the connection was closed"))

    def go_away(self):
        """The next message cannot reach the platform."""
        self.adapter.errors.append(ConnectionRefusedError("connection refused"))

    def hang(self):
        """From now on the platform does not respond."""
        self.hung = trio.Event()


@pytest.fixture(params=[Memory], ids=lambda kind: kind.__name__)
async def platform(request):
    async with request.param.open() as opened:
        yield opened


def row(platform, text="hello", chat=0, **fields):
    """An outbox row."""
    adapter, chat_id = platform.adapter, platform.chats[chat]
    body = {
        "kind": "reply",
        "text": text,
        "platform": adapter.platform,
        "account": platform.account or "",
        "chat_id": chat_id,
        "thread_id": None,
        "user_id": "u",
        "session_id": "s",
        "reply_to": None,
    }
    lane = f"{adapter.platform}//{chat_id}/"
    return replace(OutboxRow(1, "k", 1, lane, body, "sending", 1, recovered=False), **fields)


async def failure(platform, message=None):
    """Return the exception that `send` raises."""
    with pytest.raises(Exception) as raised:
        await platform.adapter.send(message or row(platform))
    return raised.value


async def test_it_names_its_platform_account_and_limit(platform):
    adapter = platform.adapter
    assert isinstance(adapter.platform, str)
    assert adapter.platform
    assert isinstance(platform.account, str | None)
    assert platform.limit is None or platform.limit >= 100


async def test_the_platform_has_the_message_once_when_send_returns(platform):
    await platform.adapter.send(row(platform))
    assert platform.taken == [(platform.chats[0], "hello")]


async def test_each_message_is_sent_to_its_chat_in_order(platform):
    async def send_three(chat):
        for number in range(3):
            await platform.adapter.send(row(platform, f"{chat}:{number}", chat))

    async with trio.open_nursery() as nursery:
        for chat in range(3):
            nursery.start_soon(send_three, chat)
    for chat, name in enumerate(platform.chats[:3]):
        texts = [text for chat_id, text in platform.taken if chat_id == name]
        assert texts == [f"{chat}:{number}" for number in range(3)]


@pytest.mark.parametrize("text", ["*_[]()~`>#+-=|{}.!\\", "<b>&amp;", "日本語 👩‍👩‍👧", " a\n\n\tb"])
async def test_a_text_arrives_unchanged(platform, text):
    await platform.adapter.send(row(platform, text))
    [(_, taken)] = platform.taken
    assert taken.strip() == text.strip()


async def test_a_text_of_the_longest_length_is_one_message(platform):
    limit = platform.limit or 1000
    for text in ("x" * limit, "👍" * (limit // 2), "." * limit):
        assert utf16(text) <= limit
        await platform.adapter.send(row(platform, text))
    assert len(platform.taken) == 3


async def test_a_chat_that_is_gone_raises_unsendable_and_can_be_tried_again(platform):
    platform.lose_chat()
    assert isinstance(await failure(platform), Unsendable)
    assert platform.taken == []
    await platform.adapter.send(row(platform))
    assert len(platform.taken) == 1


async def test_a_rate_limit_raises_retry_after_with_its_delay(platform):
    platform.flood(2)
    error = await failure(platform)
    assert isinstance(error, RetryAfter)
    assert 0 < error.seconds <= 2
    assert platform.taken == []


async def test_a_refused_message_raises_message_refused(platform):
    platform.refuse()
    assert isinstance(await failure(platform), MessageRefused)
    assert platform.taken == []


async def test_an_unknown_outcome_is_not_reported_as_not_taken(platform):
    platform.lose_answer()
    assert not isinstance(await failure(platform), NOT_TAKEN)
    assert len(platform.taken) == 1, "the adapter itself does not send it again"


async def test_an_unreachable_platform_is_not_reported_as_a_missing_chat(platform):
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
