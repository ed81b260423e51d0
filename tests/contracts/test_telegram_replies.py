"""The Telegram adapter sends replies: previews, rate limits, failures."""

from __future__ import annotations

import json

import attrs
import pytest
import trio

from hermes import AccessPolicy, Config, Texts, ToolCall, open_runtime
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram import Telegram
from hermes.adapters.telegram.api import BotApi
from hermes.adapters.telegram.sender import ChatTarget, Sender
from hermes.agents.tools.toolbox import Toolbox, tool
from hermes.events import TextDelta
from hermes.messages import OutboxRow, Source
from hermes.redaction.keys import Secret
from hermes.store import SessionStore
from hermes.testing.telegram import TOKEN, Fault, Limits, open_telegram
from tests.support.chat import access_for
from tests.support.telegram_bot import (
    echo,
    fast_limiter,
    running_bot,
    texts,
    wait_confirmed,
    wait_texts,
)


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


async def test_a_long_reply_is_sent_in_parts(server, path):
    long = "\n\n".join(f"paragraph {n} " + "word " * 100 for n in range(20)) + " 😀" * 3000

    async def talk(turn):
        return long

    async with running_bot(server, path, talk):
        server.say(7, "go")
        await server.wait_until(lambda: "".join(texts(server, 7)).count("😀") == 3000)
    assert len(texts(server, 7)) > 3
    assert "".join("".join(texts(server, 7)).split()) == "".join(long.split())


async def test_a_reply_whose_formatting_is_refused_is_sent_as_plain_text(server, path):
    server.refuse_formatting = True

    async def talk(turn):
        return "**bold** words"

    async with running_bot(server, path, talk):
        server.say(7, "go")
        assert await wait_texts(server, 7, 1) == ["**bold** words"]


@pytest.mark.parametrize("formatted", [True, False])
async def test_the_call_that_is_shown_is_the_call_that_runs(server, path, formatted):
    ran = []
    command = "rm -rf a*.log b* [x](http://evil) \\\\ ``` \u202e"

    @tool(approval=True)
    def run_it(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "done"

    toolbox = Toolbox([run_it])

    async def talk(turn):
        calls = await toolbox.approved_calls(turn)
        calls = calls or [ToolCall("c", "run_it", json.dumps({"command": command}))]
        return (await toolbox.run(calls[0], turn)).content

    server.refuse_formatting = not formatted
    async with running_bot(server, path, talk, access=access_for(users=["7"])):
        server.say(7, "go")
        question, _ = await wait_texts(server, 7, 2)
        server.say(7, "/approve")
        assert (await wait_texts(server, 7, 4))[-1] == "done"
    assert ran == [command]
    [shown] = [line for line in question.splitlines() if line.startswith("{")]
    assert "\u202e" not in shown
    assert json.loads(shown) == {"command": command}


async def test_a_preview_is_edited_into_the_final_message(server, path):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("first **words**"))
        await go_on.wait()
        turn.emit(TextDelta(" and more"))
        return "first **words** and more"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        assert await wait_texts(server, 7, 1) == ["first words ▌"]
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["first words and more"])
    assert server.chats[7].typing >= 1


async def test_the_preview_of_a_stopped_turn_loses_its_cursor(server, path):
    async def talk(turn):
        turn.emit(TextDelta("so far"))
        await trio.sleep_forever()

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        assert await wait_texts(server, 7, 1) == ["so far ▌"]
        server.say(7, "/stop")
        await server.wait_until(lambda: "so far" in texts(server, 7))
        assert len(await wait_texts(server, 7, 2)) == 2  # and what /stop says


@pytest.mark.parametrize("taken", [True, False])
async def test_an_edit_whose_outcome_is_unknown_is_repeated_and_duplicates_nothing(
    server, path, taken
):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await go_on.wait()
        return "so it is"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        await wait_texts(server, 7, 1)
        server.fail(Fault("reset", taken=taken, method="editMessageText"))
        go_on.set()
        await server.wait_until(lambda: server.counts["editMessageText"] == 1 + taken)
    assert texts(server, 7) == ["so it is"]
    with SessionStore(path) as store:
        assert store.pending_outbox() == []


async def test_the_final_message_waits_for_the_preview_in_flight(server, path):
    server.fail(Fault("slow", method="sendMessage", seconds=0.5))

    async def talk(turn):
        turn.emit(TextDelta("so"))
        while not server.broken["sendMessage"]:  # noqa: ASYNC110 - it is in the call
            await trio.sleep(0.01)
        return "so it is"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        await server.wait_until(lambda: "so it is" in texts(server, 7))
    assert [(each.text, each.versions) for each in server.chats[7].messages] == [
        ("so it is", ["so ▌"])
    ]


async def test_a_late_edit_of_a_preview_cannot_overwrite_the_final_message(server, path):
    """A preview whose last edit has an unknown outcome is not used for the final message."""
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await server.wait_until(lambda: server.counts["sendMessage"])
        server.fail(Fault("reset", taken=True, method="editMessageText"))
        turn.emit(TextDelta(" it"))
        await go_on.wait()
        return "so it is"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        await server.wait_until(lambda: texts(server, 7) == ["so it ▌"])
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["so it is"])
    first, final = server.chats[7].messages
    assert (first.deleted, final.versions) == (True, [])


async def test_a_deleted_preview_is_followed_by_the_final_message(server, path):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await go_on.wait()
        return "so it is"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        await wait_texts(server, 7, 1)
        server.chats[7].messages[0].deleted = True
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["so it is"])


async def test_a_preview_whose_outcome_is_unknown_is_not_repeated(server, path):
    go_on = trio.Event()
    server.fail(Fault("reset", taken=True, method="sendMessage"))

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await server.wait_until(lambda: server.counts["sendMessage"])
        for _ in range(5):
            turn.emit(TextDelta("."))
            await trio.sleep(0.03)
        await go_on.wait()
        return "so it is"

    async with running_bot(server, path, talk, preview_interval=0.02):
        server.say(7, "go")
        await wait_texts(server, 7, 1)
        go_on.set()
        assert await wait_texts(server, 7, 2) == ["so ▌", "so it is"]
    assert server.counts["sendMessage"] == 2


@pytest.mark.parametrize("taken", [True, False])
async def test_a_reply_whose_outcome_is_unknown_is_sent_again_with_a_mark(server, path, taken):
    server.fail(Fault("502", taken=taken, method="sendMessage"))
    async with running_bot(server, path):
        server.say(7, "hello")
        await wait_texts(server, 7, 1 + taken)
    again = "You may have seen this before:\nYou said: hello"
    assert texts(server, 7) == (["You said: hello", again] if taken else [again])


async def test_the_mark_is_one_of_the_texts_and_leaves_room_for_the_longest_message(server, path):
    emoji = Texts(recovered="\N{OWL}" * 500)
    server.fail(Fault("502", taken=False, method="sendMessage"))

    async def talk(turn):
        return "x" * Telegram.limit

    async with running_bot(server, path, talk, texts=emoji):
        server.say(7, "hello")
        [text] = await wait_texts(server, 7, 1)
    assert text == "\N{OWL}" * 45 + "\n" + "x" * Telegram.limit


async def test_a_reply_that_certainly_was_not_received_is_sent_again_without_a_mark(
    server, path, caplog
):
    async def talk(turn):
        await server.go_down()
        return "here I am"

    async with running_bot(server, path, talk):
        server.say(7, "hello")
        while "reply 1 is sent again" not in caplog.text:  # noqa: ASYNC110 - nothing is called
            await trio.sleep(0.01)
        await server.come_up()
        assert await wait_texts(server, 7, 1) == ["here I am"]


async def test_after_a_429_the_bot_waits_for_the_requested_time(path):
    """The rate limiter of this bot does not know the limits of the server."""
    limits = Limits(per_chat=(2, 1.5), per_group=(99, 60.0), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:

        async def talk(turn):
            return "\n\n".join(["x" * 4000] * 4)

        async with running_bot(server, path, talk):
            server.say(7, "go")
            assert len(await wait_texts(server, 7, 4)) == 4
        assert (server.floods, server.flood_control.impatient) == (1, 0)
        assert not any("seen this" in text for text in texts(server, 7))


async def test_a_429_in_one_topic_pauses_the_whole_chat(path):
    limits = Limits(per_chat=(2, 1.5), per_group=(99, 60.0), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:
        server.group(-100, is_forum=True, topics={2, 3, 4, 5})
        async with running_bot(server, path):
            for number, topic in enumerate((2, 3, 4), 1):
                server.say(-100, "@hermes_bot hi", user_id=7, topic=topic)
                await server.wait_until(lambda n=number: server.counts["sendMessage"] == n)
            await server.wait_until(lambda: server.floods == 1)
            await trio.sleep(0.3)  # longer than a call is in flight
            server.say(-100, "@hermes_bot hi", user_id=7, topic=5)
            await wait_texts(server, -100, 4)
        assert (server.floods, server.flood_control.impatient) == (1, 0)


async def test_with_its_rate_limiter_it_stays_within_the_limits(path):
    limits = Limits(per_chat=(1, 0.1), per_group=(3, 0.3), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:
        server.group(-100)

        async def talk(turn):
            return "\n\n".join(["x" * 4000] * 5)

        # The server measures arrival times: a call may take longer than the next one.
        limiter = RateLimiter(
            per_token=Rate(30, 1.0), per_chat=Rate(1, 0.5), per_group=Rate(3, 1.2)
        )
        async with running_bot(server, path, talk, rate_limiter=limiter):
            server.say(7, "go")
            server.say(-100, "@hermes_bot go", user_id=7)
            await wait_texts(server, 7, 5)
            await wait_texts(server, -100, 5)
        assert server.floods == 0


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_reply_that_waits_for_the_rate_limiter_when_the_bot_ends_is_not_marked(
    server, path, parts
):
    """Telegram certainly does not have it. The limiter of the next start is empty again."""

    async def talk(turn):
        return "\n\n".join(["x" * 4000] * parts)

    slow = RateLimiter(per_token=Rate(30, 1.0), per_chat=Rate(1, 1000.0))
    async with running_bot(server, path, talk, rate_limiter=slow, config=Config(drain_timeout=0.1)):
        server.say(7, "go")
        await wait_texts(server, 7, 1)
        if parts == 1:
            server.say(7, "once more")
            await server.wait_until(lambda: not server.pending)
        while not any(row.part or row.outbox_id == 2 for row in waiting(path)):  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert [(row.state, row.recovered) for row in waiting(path)] == [("pending", False)]
    async with running_bot(server, path, talk):
        assert await wait_texts(server, 7, 2) == ["x" * 4000] * 2


def waiting(path):
    with SessionStore(path) as store:
        return store.pending_outbox()


class Counted(RateLimiter):
    """A rate limiter that counts the calls of `acquire`."""

    waits = 0

    async def acquire(self, chat, *, group=False):
        self.waits += 1
        await super().acquire(chat, group=group)


def to_seven(text):
    body = {"kind": "reply", "text": text, "chat_id": "7", "platform": "telegram"}
    return OutboxRow(1, "k", 1, "telegram//7/", body, "pending", 0, recovered=False)


async def test_blank_replies_are_not_sent_and_use_no_rate(server):
    limiter = Counted(per_token=Rate(1, 1000.0), per_chat=Rate(1, 1000.0))
    async with Telegram(Secret(TOKEN), base_url=server.url, rate_limiter=limiter) as telegram:
        for verb in (telegram.ready, telegram.send):
            await verb(to_seven(" \n"))
    assert (limiter.waits, server.counts) == (0, {})


@pytest.mark.parametrize(
    ("readies", "passed", "waits"),
    [(0, 0.0, 1), (1, 0.0, 1), (1, 0.9, 1), (1, 1.1, 2)],
    ids=["not asked before", "at once", "soon", "long after"],
)
async def test_a_permit_of_ready_is_used_by_send_for_a_short_time(
    server, mock_clock, readies, passed, waits
):
    mock_clock.rate = 1e-9  # time is advanced by the test only
    server.private(7)
    row = to_seven("hello")
    limiter = Counted(per_token=Rate(1000, 1.0), per_chat=Rate(1000, 1.0))
    async with Telegram(Secret(TOKEN), base_url=server.url, rate_limiter=limiter) as telegram:
        for _ in range(readies):
            await telegram.ready(row)
        mock_clock.jump(passed)
        await telegram.send(row)
        assert limiter.waits == waits
        await telegram.send(row)
        assert limiter.waits == waits + 1, "the permit is used once"


async def moved_group(server, sender, turn_id, *, notified):
    """Let a group become a supergroup, which already has a message with the id of the preview."""
    server.group(-5, "group")
    await sender.preview(ChatTarget("-5"), turn_id, "so")
    await sender.send(to_group({"kind": "question", "text": "May I?", "approval": 3}))
    supergroup = server.migrate(-5, -1005)
    supergroup.messages += [
        attrs.evolve(each, text="foreign") for each in server.chats[-5].messages
    ]
    if notified:
        sender.migrate("-5", "-1005")
    return supergroup


def to_group(body):
    body = {"chat_id": "-5", "platform": "telegram", **body}
    return OutboxRow(1, "k", 1, "telegram//-5/", body, "pending", 0, recovered=False)


@pytest.fixture
async def sender(server):
    api = BotApi(Secret(TOKEN), server.url)
    yield Sender(api, fast_limiter(), Texts())
    await api.aclose()


@pytest.mark.parametrize("notified", [True, False])
async def test_ids_of_a_group_are_not_used_in_the_supergroup_that_it_becomes(
    server, sender, notified
):
    supergroup = await moved_group(server, sender, 1, notified=notified)
    await sender.send(to_group({"kind": "reply", "text": "so it is", "reply_to": "1"}))
    await sender.send(to_group({"kind": "notice", "text": "and that", "reply_to": "1"}))
    assert [(each.text, each.reply_to) for each in supergroup.messages] == [
        ("foreign", None), ("foreign", None), ("so it is", None), ("and that", None),
    ]  # fmt: skip


@pytest.mark.parametrize("notified", [True, False])
async def test_messages_of_a_supergroup_are_not_taken_for_those_of_the_group(
    server, sender, notified
):
    supergroup = await moved_group(server, sender, 1, notified=notified)
    buttons = [dict(each.buttons) for each in supergroup.messages]
    await sender.decided(3)
    if notified:
        await sender.preview(ChatTarget("-5"), 1, "so it")
    await sender.finish_preview(1)
    assert texts(server, -1005) == ["foreign", "foreign"]
    assert [each.buttons for each in supergroup.messages] == buttons


async def test_a_preview_in_a_supergroup_is_edited_into_the_reply_to_its_group(server, sender):
    server.group(-5, "group")
    server.migrate(-5, -1005)
    sender.migrate("-5", "-1005")
    await sender.preview(ChatTarget("-5"), 1, "so")
    await sender.send(to_group({"kind": "reply", "text": "so it is", "reply_to": "1"}))
    assert texts(server, -1005) == ["so it is"]


@pytest.mark.parametrize(
    "gone",
    [
        "bot was blocked by the user",
        "user is deactivated",
        "bot was kicked from the supergroup chat",
        None,
    ],
)
async def test_a_chat_that_is_gone_is_not_tried_again_and_affects_no_other(server, path, gone):
    async def talk(turn):
        if turn.source.chat_id == "7":
            if gone is None:
                del server.chats[7]
            else:
                server.chats[7].gone = gone
        return f"You said: {turn.text}"

    async with running_bot(server, path, talk):
        chat = server.private(7)
        server.say(7, "hello")
        await server.wait_until(lambda: server.counts["sendMessage"] == 1)
        server.say(8, "hello")
        assert await wait_texts(server, 8, 1) == ["You said: hello"]
    assert (chat.texts, server.counts["sendMessage"]) == ([], 2)


async def test_replies_to_a_deleted_topic_are_given_up(server, path):
    forum = server.group(-100, is_forum=True, topics={9})

    async def talk(turn):
        forum.topics.clear()
        return "x"

    async with running_bot(server, path, talk):
        server.say(-100, "@hermes_bot here", user_id=7, topic=9)
        await server.wait_until(lambda: server.counts["sendMessage"] == 1)
        await wait_confirmed(server)
    assert server.counts["sendMessage"] == 1


async def test_a_reply_with_an_invalid_chat_id_is_given_up(server, path):
    """A host may send messages for a platform with any ids."""
    async with (
        Telegram(Secret(TOKEN), base_url=server.url) as telegram,
        open_runtime(
            path, agent=echo, adapters=[telegram], access=AccessPolicy.everyone()
        ) as runtime,
    ):
        for chat, thread in ((None, None), ("x", None), ("7", "y")):
            source = Source("telegram", telegram.account, chat, thread_id=thread)
            await runtime.ask(f"key {chat}", "hello", source=source)
        good = Source("telegram", telegram.account, "7")
        server.private(7)
        await runtime.ask("key", "hello", source=good)
        with trio.fail_after(10):
            assert await wait_texts(server, 7, 1) == ["You said: hello"]
    assert server.counts == {"sendMessage": 1}
    with SessionStore(path) as store:
        assert store.pending_outbox() == []
