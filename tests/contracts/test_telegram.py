"""The Telegram adapter on a real runtime, against the Bot API on this machine, by sockets."""

from __future__ import annotations

import logging
import traceback
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from hermes import AccessPolicy, Config, PlatformRules, open_runtime
from hermes.actors.admission.rate_limit import RateLimit
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram import GroupPolicy, Telegram
from hermes.errors import NotAdmitted, Overloaded, StoreBusy, StoreFull
from hermes.events import TextDelta
from hermes.messages import OutboxRow, Source
from hermes.redaction.keys import Secret
from hermes.session_keys import session_key
from hermes.store import SessionStore
from hermes.testing.telegram import TOKEN, WEEK, Fault, Limits, open_telegram

SECRET = TOKEN.partition(":")[2]
AT_ONCE = GroupPolicy(burst_seconds=0.0, album_seconds=1.0)


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


async def echo(turn):
    return f"You said: {turn.text}"


def unhurried():
    return RateLimiter(per_token=Rate(1000, 1.0), per_chat=Rate(1000, 1.0))


@asynccontextmanager
async def bot(server, path, agent=echo, *, config=None, between=None, admission=None, **options):
    """A bot that runs; `between` wraps its runtime."""
    options = {
        "manners": AT_ONCE,
        "governor": unhurried(),
        "preview_seconds": None,
        "pause_seconds": 0.05,
        **options,
    }
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, **options) as telegram,
        open_runtime(
            path, agent=agent, adapters=[telegram], config=config, admission=admission
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(telegram.run, between(runtime) if between else runtime)
        with trio.fail_after(20):
            yield telegram
        nursery.cancel_scope.cancel()


def texts(server, chat_id):
    return server.rooms[chat_id].texts if chat_id in server.rooms else []


async def says(server, chat_id, number):
    """What a chat shows, once the bot has said so much."""
    await server.wait_until(lambda: len(texts(server, chat_id)) >= number)
    return texts(server, chat_id)


async def confirmed(server):
    await server.wait_until(lambda: server.pending == 0)


@attrs.define
class Refusing:
    """A runtime that raises errors before it takes anything."""

    runtime: object
    errors: list

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    async def submit(self, inbound):
        if self.errors:
            raise self.errors.pop(0)
        return await self.runtime.submit(inbound)


# Messages


async def test_a_message_is_answered_and_confirmed(server, path):
    server.say(7, "hello")
    async with bot(server, path):
        assert await says(server, 7, 1) == ["You said: hello"]
        await confirmed(server)
    (shown,) = server.rooms[7].messages
    assert (shown.reply_to, shown.thread_id) == (None, None)


async def test_messages_from_before_the_start_are_answered_too(server, path):
    for number in range(3):
        server.say(7 + number, f"early {number}")
    async with bot(server, path):
        for number in range(3):
            assert await says(server, 7 + number, 1) == [f"You said: early {number}"]


async def test_the_offset_is_sent_once_and_only_for_what_was_taken(server, path):
    first = server.update("message", {"message_id": 1, "chat": {"id": 7}, "text": "x"})
    async with bot(server, path):
        server.private(7)
        await confirmed(server)
        await server.wait_until(lambda: server.counts["getUpdates"] >= 2)
        server.say(7, "y")
        await says(server, 7, 1)
        await confirmed(server)
    offsets = [params.get("offset") for method, params in server.calls if method == "getUpdates"]
    assert [each for each in offsets if each] == [first + 1, first + 2]
    assert all("drop_pending_updates" not in params for _, params in server.calls)
    assert all(each is None or each > 0 for each in offsets)


async def test_an_update_is_confirmed_only_after_it_is_on_disk(server, path):
    """Where the store cannot take it, it stays with Telegram, and comes again."""
    errors = [StoreBusy("busy"), StoreFull("full"), StoreBusy("busy")]
    waiting = []

    class Watching(Refusing):
        async def submit(self, inbound):
            waiting.append(server.pending)
            return await super().submit(inbound)

    server.say(7, "one")
    server.say(7, "two")
    async with bot(server, path, between=lambda runtime: Watching(runtime, errors)) as telegram:
        await says(server, 7, 1)
        await confirmed(server)
        assert telegram.trouble is None
    assert waiting == [2, 2, 2, 2, 2]


async def test_what_was_taken_but_not_confirmed_is_not_answered_twice(server, path):
    server.say(7, "hello")
    async with bot(server, path):
        await says(server, 7, 1)
    # The poll that would have confirmed it may never have come.
    server.say(7, "again")
    server.fail(Fault(method="getUpdates", taken=True))
    async with bot(server, path):
        await says(server, 7, 2)
        await confirmed(server)
    assert texts(server, 7) == ["You said: hello", "You said: again"]


async def test_after_an_idle_week_a_lower_number_is_no_duplicate(server, path):
    async with bot(server, path):
        server.say(7, "before")
        await says(server, 7, 1)
        await confirmed(server)
        seen = server.counts["getUpdates"]
        server.pass_time(WEEK + 1)
        server.say(7, "after")
        assert (await says(server, 7, 2))[-1] == "You said: after"
        await confirmed(server)
        assert server.counts["getUpdates"] > seen


async def test_updates_that_cannot_be_read_are_skipped(server, path, caplog):
    deep = b"[" * 50_000 + b"]" * 50_000
    server.raw_update("message", b'{"message_id":1,"chat":"x"}')
    server.say(7, "one")
    server.raw_update("message", b'{"message_id":1,"chat":' + deep + b"}")
    server.raw_update("message", b'{"message_id":2,"chat":' + deep + b"}")
    server.say(7, "two")
    async with bot(server, path):
        assert len(await says(server, 7, 1)) >= 1
        await confirmed(server)
        await server.wait_until(lambda: "two" in "".join(texts(server, 7)))
    assert caplog.text.count("is skipped") == 3


async def test_who_is_not_admitted_counts_as_done(server, path):
    errors = [NotAdmitted("7 is not on the list")]
    server.say(7, "let me in")
    server.say(8, "hello")
    async with bot(server, path, between=lambda runtime: Refusing(runtime, errors)):
        assert await says(server, 8, 1) == ["You said: hello"]
        await confirmed(server)
    assert texts(server, 7) == []


async def test_nobody_was_too_fast_because_the_bot_was_away(server, path):
    """Rates go by when something was said: a day's messages come all at once after a day."""
    door = AccessPolicy(
        rules={"telegram": PlatformRules(users=[7, 8])}, rates=RateLimit(per_minute=2, burst=2)
    )
    for number in range(9):
        server.say(7, f"now and then {number}")
        server.pass_time(60)
    for number in range(9):
        server.say(8, f"at once {number}")
    heard = []

    async def listen(turn):
        heard.extend(message.content for message in turn.input)
        return "so be it"

    async with bot(server, path, listen, admission=door):
        await confirmed(server)
        await server.wait_until(lambda: any("too much" in text for text in texts(server, 8)))
    assert sorted(heard) == [
        *(f"at once {number}" for number in range(2)),
        *(f"now and then {number}" for number in range(9)),
    ]


async def test_strangers_do_not_fill_the_log(server, path, caplog):
    caplog.set_level("INFO")
    for number in range(20):
        server.say(7, f"spam {number}")
    async with bot(
        server, path, admission=AccessPolicy(rules={"telegram": PlatformRules(users=[1])})
    ):
        await confirmed(server)
    assert sum("turned away" in line or "admitted" in line for line in caplog.messages) == 1


async def test_what_is_too_much_is_refused_in_one_sentence(server, path):
    errors = [Overloaded("too much")]
    server.say(7, "x")
    server.say(8, "hello")
    async with bot(server, path, between=lambda runtime: Refusing(runtime, errors)):
        assert await says(server, 8, 1) == ["You said: hello"]
        (sentence,) = await says(server, 7, 1)
        assert "not taken" in sentence
        await confirmed(server)


async def test_the_bot_ends_with_its_runtime(server, path):
    ended = trio.Event()
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, manners=AT_ONCE) as telegram,
        open_runtime(path, agent=echo, adapters=[telegram]) as runtime,
        trio.open_nursery() as nursery,
    ):

        async def run():
            await telegram.run(runtime)
            ended.set()

        nursery.start_soon(run)
        await server.wait_until(lambda: server.counts["getMe"])
        await runtime.drain()
        server.say(7, "too late")
        with trio.fail_after(10):
            await ended.wait()
    assert server.pending == 1  # for the next start


@pytest.mark.parametrize("edits", [True, False])
async def test_an_edit_is_heard_only_by_a_bot_that_wants_it(server, path, edits):
    manners = attrs.evolve(AT_ONCE, edits=edits)
    async with bot(server, path, manners=manners):
        number = server.say(7, "helo")
        await says(server, 7, 1)
        server.post(7, kind="edited_message", message_id=number, text="hello")
        server.say(8, "done")
        await says(server, 8, 1)
        if edits:
            await says(server, 7, 2)
        await confirmed(server)
    assert texts(server, 7)[1:] == (["You said: (edited) hello"] if edits else [])


# Groups


async def test_in_a_group_it_answers_who_mentions_it_and_replies_to_the_message(server, path):
    group = server.group(-100)
    async with bot(server, path):
        server.say(-100, "hello all", user_id=7)
        asked = server.say(-100, "hi @hermes_bot there", user_id=7)
        assert await says(server, -100, 1) == ["You said: hi there"]
        await confirmed(server)
    assert group.messages[0].reply_to == asked


async def test_a_topic_is_answered_in_the_topic_and_the_general_one_without_its_number(
    server, path
):
    forum = server.group(-100, is_forum=True, topics={9})
    async with bot(server, path):
        server.say(-100, "@hermes_bot here", user_id=7, topic=9)
        await says(server, -100, 1)
        server.say(-100, "@hermes_bot there", user_id=7)
        await says(server, -100, 2)
    assert [(each.text, each.thread_id) for each in forum.messages] == [
        ("You said: user 7: here", 9),
        ("You said: user 7: there", None),
    ]


async def test_an_album_is_one_turn(server, path):
    turns = []

    async def look(turn):
        turns.append([part["ref"] for m in turn.input for part in m.parts or ()])
        return f"{len(turns[-1])} pictures: {turn.text}"

    async with bot(server, path, look):
        for number in range(3):
            caption = {"caption": "my garden"} if not number else {}
            server.post(7, photo=[{"file_id": f"p{number}"}], media_group_id="g", **caption)
            await confirmed(server)  # each one came for itself
        (said,) = await says(server, 7, 1)
        await confirmed(server)
    assert turns == [["telegram:p0", "telegram:p1", "telegram:p2"]]
    assert said.startswith("3 pictures: [photo] my garden")


async def test_a_group_that_becomes_a_supergroup_goes_on(server, path):
    """Its conversations, what was not yet sent there, and all that after a restart as well."""
    server.group(-5, "group", title="us")
    counting = Counting()
    async with bot(server, path, counting):
        server.say(-5, "@hermes_bot one", user_id=7)
        await says(server, -5, 1)
        counting.before_answer = lambda: server.migrate(-5, -1005)
        server.say(-5, "@hermes_bot two", user_id=7)
        assert await says(server, -1005, 1) == ["2: two"]
        await confirmed(server)
        counting.before_answer = lambda: None
        server.say(-1005, "@hermes_bot three", user_id=7)
        assert (await says(server, -1005, 2))[-1] == "3: three"
    async with bot(server, path, counting):
        server.say(-1005, "@hermes_bot four", user_id=7)
        assert (await says(server, -1005, 3))[-1] == "4: four"


@attrs.define
class Counting:
    """Says how many messages a user has said in this conversation."""

    before_answer: object = lambda: None

    async def run(self, turn):
        from hermes.messages import TurnResult

        self.before_answer()
        asked = [message for message in turn.history if message.role == "user"]
        return TurnResult(text=f"{len(asked) + 1}: {turn.text}")

    def __call__(self, spec):
        return self


# Replies


async def test_a_long_reply_comes_in_parts_that_telegram_takes(server, path):
    long = "\n\n".join(f"paragraph {n} " + "word " * 100 for n in range(20)) + " 😀" * 3000

    async def talk(turn):
        return long

    async with bot(server, path, talk):
        server.say(7, "go")
        await server.wait_until(lambda: "".join(texts(server, 7)).count("😀") == 3000)
    assert len(texts(server, 7)) > 3
    assert "".join("".join(texts(server, 7)).split()) == "".join(long.split())


async def test_formatting_that_telegram_refuses_is_sent_plainly(server, path):
    server.refuse_formatting = True

    async def talk(turn):
        return "**bold** words"

    async with bot(server, path, talk):
        server.say(7, "go")
        assert await says(server, 7, 1) == ["**bold** words"]


async def test_a_preview_is_edited_into_the_one_final(server, path):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("first **words**"))
        await go_on.wait()
        turn.emit(TextDelta(" and more"))
        return "first **words** and more"

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        assert await says(server, 7, 1) == ["first words ▌"]
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["first words and more"])
    assert server.rooms[7].typing >= 1


async def test_a_preview_of_a_turn_that_is_stopped_does_not_look_unfinished(server, path):
    async def talk(turn):
        turn.emit(TextDelta("so far"))
        await trio.sleep_forever()

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        assert await says(server, 7, 1) == ["so far ▌"]
        server.say(7, "/stop")
        await server.wait_until(lambda: "so far" in texts(server, 7))
        assert len(await says(server, 7, 2)) == 2  # and what /stop says


@pytest.mark.parametrize("taken", [True, False])
async def test_an_edit_whose_outcome_is_unknown_is_done_again_and_duplicates_nothing(
    server, path, taken
):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await go_on.wait()
        return "so it is"

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        await says(server, 7, 1)
        server.fail(Fault("reset", taken=taken, method="editMessageText"))
        go_on.set()
        await server.wait_until(lambda: server.counts["editMessageText"] == 1 + taken)
    assert texts(server, 7) == ["so it is"]
    with SessionStore(path) as store:
        assert store.pending_outbox() == []


async def test_a_final_waits_for_the_preview_that_is_on_its_way(server, path):
    server.fail(Fault("slow", method="sendMessage", seconds=0.5))

    async def talk(turn):
        turn.emit(TextDelta("so"))
        while not server.broken["sendMessage"]:  # noqa: ASYNC110 - it is in the call
            await trio.sleep(0.01)
        return "so it is"

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        await server.wait_until(lambda: "so it is" in texts(server, 7))
    assert [(each.text, each.versions) for each in server.rooms[7].messages] == [
        ("so it is", ["so ▌"])
    ]


async def test_a_late_edit_of_a_preview_cannot_undo_the_final(server, path):
    """Where nobody knows what became of an edit, its message is not used for the final."""
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await server.wait_until(lambda: server.counts["sendMessage"])
        server.fail(Fault("reset", taken=True, method="editMessageText"))
        turn.emit(TextDelta(" it"))
        await go_on.wait()
        return "so it is"

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        await server.wait_until(lambda: texts(server, 7) == ["so it ▌"])
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["so it is"])
    first, final = server.rooms[7].messages
    assert (first.deleted, final.versions) == (True, [])


async def test_a_preview_that_somebody_deleted_is_followed_by_the_final(server, path):
    go_on = trio.Event()

    async def talk(turn):
        turn.emit(TextDelta("so"))
        await go_on.wait()
        return "so it is"

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        await says(server, 7, 1)
        server.rooms[7].messages[0].deleted = True
        go_on.set()
        await server.wait_until(lambda: texts(server, 7) == ["so it is"])


async def test_a_preview_that_may_be_lost_is_not_tried_again(server, path):
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

    async with bot(server, path, talk, preview_seconds=0.02):
        server.say(7, "go")
        await says(server, 7, 1)
        go_on.set()
        assert await says(server, 7, 2) == ["so ▌", "so it is"]
    assert server.counts["sendMessage"] == 2


@pytest.mark.parametrize("taken", [True, False])
async def test_a_reply_whose_outcome_is_unknown_is_sent_again_and_says_so(server, path, taken):
    server.fail(Fault("502", taken=taken, method="sendMessage"))
    async with bot(server, path):
        server.say(7, "hello")
        await says(server, 7, 1 + taken)
    again = "You may have seen this before:\nYou said: hello"
    assert texts(server, 7) == (["You said: hello", again] if taken else [again])


async def test_a_reply_that_surely_never_arrived_is_simply_sent_again(server, path, caplog):
    async def talk(turn):
        await server.go_down()
        return "here I am"

    async with bot(server, path, talk):
        server.say(7, "hello")
        while "reply 1 is tried again" not in caplog.text:  # noqa: ASYNC110 - nothing is called
            await trio.sleep(0.01)
        await server.come_up()
        assert await says(server, 7, 1) == ["here I am"]


async def test_floods_are_waited_out_and_then_avoided(path):
    """A governor that knows nothing runs into the limit, and waits as long as it is told to."""
    limits = Limits(per_chat=(2, 1.5), per_group=(99, 60.0), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:

        async def talk(turn):
            return "\n\n".join(["x" * 4000] * 4)

        async with bot(server, path, talk):
            server.say(7, "go")
            assert len(await says(server, 7, 4)) == 4
        assert (server.floods, server.impatient) == (1, 0)
        assert not any("seen this" in text for text in texts(server, 7))


async def test_what_one_topic_is_told_to_wait_holds_for_the_whole_chat(path):
    limits = Limits(per_chat=(2, 1.5), per_group=(99, 60.0), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:
        server.group(-100, is_forum=True, topics={2, 3, 4, 5})
        async with bot(server, path):
            for number, topic in enumerate((2, 3, 4), 1):
                server.say(-100, "@hermes_bot hi", user_id=7, topic=topic)
                await server.wait_until(lambda n=number: server.counts["sendMessage"] == n)
            await server.wait_until(lambda: server.floods == 1)
            await trio.sleep(0.3)  # longer than a call is on its way
            server.say(-100, "@hermes_bot hi", user_id=7, topic=5)
            await says(server, -100, 4)
        assert (server.floods, server.impatient) == (1, 0)


async def test_with_its_governor_it_stays_within_the_limits(path):
    limits = Limits(per_chat=(1, 0.1), per_group=(3, 0.3), per_token=(99, 1.0))
    async with open_telegram(limits=limits) as server:
        server.group(-100)

        async def talk(turn):
            return "\n\n".join(["x" * 4000] * 5)

        # Rates are kept here and counted there: a call may take longer than the next.
        governor = RateLimiter(
            per_token=Rate(30, 1.0), per_chat=Rate(1, 0.5), per_group=Rate(3, 1.2)
        )
        async with bot(server, path, talk, governor=governor):
            server.say(7, "go")
            server.say(-100, "@hermes_bot go", user_id=7)
            await says(server, 7, 5)
            await says(server, -100, 5)
        assert server.floods == 0


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_reply_that_waits_for_its_turn_when_the_bot_ends_is_not_marked(server, path, parts):
    """Telegram surely does not have it. The next start has all its rates again."""

    async def talk(turn):
        return "\n\n".join(["x" * 4000] * parts)

    slow = RateLimiter(per_token=Rate(30, 1.0), per_chat=Rate(1, 1000.0))
    async with bot(server, path, talk, governor=slow, config=Config(drain_timeout=0.1)):
        server.say(7, "go")
        await says(server, 7, 1)
        if parts == 1:
            server.say(7, "once more")
            await server.wait_until(lambda: not server.pending)
        while not any(row.part or row.outbox_id == 2 for row in waiting(path)):  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert [(row.state, row.recovered) for row in waiting(path)] == [("pending", False)]
    async with bot(server, path, talk):
        assert await says(server, 7, 2) == ["x" * 4000] * 2


def waiting(path):
    with SessionStore(path) as store:
        return store.pending_outbox()


class Counted(RateLimiter):
    """One that counts how often it was asked to wait."""

    waits = 0

    async def wait(self, chat, *, group=False):
        self.waits += 1
        await super().wait(chat, group=group)


def to_seven(text):
    body = {"kind": "reply", "text": text, "chat_id": "7", "platform": "telegram"}
    return OutboxRow(1, "k", 1, "telegram//7/", body, "pending", 0, recovered=False)


async def test_for_what_telegram_cannot_show_nobody_waits(server):
    governor = Counted(per_token=Rate(1, 1000.0), per_chat=Rate(1, 1000.0))
    async with Telegram(Secret(TOKEN), base_url=server.url, governor=governor) as telegram:
        for verb in (telegram.ready, telegram.send):
            await verb(to_seven(" \n"))
    assert (governor.waits, server.counts) == (0, {})


@pytest.mark.parametrize(
    ("readies", "passed", "waits"),
    [(0, 0.0, 1), (1, 0.0, 1), (1, 0.9, 1), (1, 1.1, 2)],
    ids=["not asked before", "at once", "soon", "long after"],
)
async def test_what_was_allowed_is_sent_without_asking_again_if_it_is_sent_soon(
    server, mock_clock, readies, passed, waits
):
    mock_clock.rate = 1e-9  # only as a test says
    server.private(7)
    row = to_seven("hello")
    governor = Counted(per_token=Rate(1000, 1.0), per_chat=Rate(1000, 1.0))
    async with Telegram(Secret(TOKEN), base_url=server.url, governor=governor) as telegram:
        for _ in range(readies):
            await telegram.ready(row)
        mock_clock.jump(passed)
        await telegram.send(row)
        assert governor.waits == waits
        await telegram.send(row)
        assert governor.waits == waits + 1, "it is allowed once"


@pytest.mark.parametrize(
    "gone",
    [
        "bot was blocked by the user",
        "user is deactivated",
        "bot was kicked from the supergroup chat",
        None,
    ],
)
async def test_a_chat_that_is_gone_is_not_tried_again_and_harms_nobody(server, path, gone):
    async def talk(turn):
        if turn.source.chat_id == "7":
            if gone is None:
                del server.rooms[7]
            else:
                server.rooms[7].gone = gone
        return f"You said: {turn.text}"

    async with bot(server, path, talk):
        room = server.private(7)
        server.say(7, "hello")
        await server.wait_until(lambda: server.counts["sendMessage"] == 1)
        server.say(8, "hello")
        assert await says(server, 8, 1) == ["You said: hello"]
    assert (room.texts, server.counts["sendMessage"]) == ([], 2)


async def test_a_topic_that_was_deleted_is_given_up(server, path):
    forum = server.group(-100, is_forum=True, topics={9})

    async def talk(turn):
        forum.topics.clear()
        return "x"

    async with bot(server, path, talk):
        server.say(-100, "@hermes_bot here", user_id=7, topic=9)
        await server.wait_until(lambda: server.counts["sendMessage"] == 1)
        await confirmed(server)
    assert server.counts["sendMessage"] == 1


async def test_a_reply_to_a_place_that_telegram_cannot_have_is_given_up(server, path):
    """Hosts may say something for a platform by themselves."""
    async with (
        Telegram(Secret(TOKEN), base_url=server.url) as telegram,
        open_runtime(path, agent=echo, adapters=[telegram]) as runtime,
    ):
        for chat, thread in ((None, None), ("x", None), ("7", "y")):
            source = Source("telegram", telegram.account, chat, thread_id=thread)
            await runtime.ask(f"key {chat}", "hello", source=source)
        good = Source("telegram", telegram.account, "7")
        server.private(7)
        await runtime.ask("key", "hello", source=good)
        with trio.fail_after(10):
            assert await says(server, 7, 1) == ["You said: hello"]
    assert server.counts == {"sendMessage": 1}
    with SessionStore(path) as store:
        assert store.pending_outbox() == []


# Trouble


async def test_a_revoked_token_is_told_in_one_sentence_and_the_runtime_goes_on(
    server, path, caplog
):
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, manners=AT_ONCE) as telegram,
        open_runtime(path, agent=echo, adapters=[telegram]) as runtime,
    ):
        server.revoke()
        with trio.fail_after(5):
            await telegram.run(runtime)
        assert "BotFather" in telegram.trouble
        assert (await runtime.ask("somebody else", "hello")).text == "You said: hello"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert line == telegram.trouble
    assert line.count("\n") == 0


async def test_a_reply_waits_for_a_new_token(server, path):
    """Nothing is lost while the token is bad, and with a new one it is sent, unmarked."""

    async def talk(turn):
        server.revoke()
        return "worth waiting for"

    async with bot(server, path, talk, config=Config(drain_timeout=0.1)) as telegram:
        server.say(7, "go")
        while telegram.trouble is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert texts(server, 7) == []
    server.token = TOKEN
    async with bot(server, path):
        assert await says(server, 7, 1) == ["worth waiting for"]


async def test_another_program_with_the_same_token_is_told_and_outlasted(server, path, caplog):
    from hermes.adapters.telegram.api import BotApi

    other = BotApi(Secret(TOKEN), server.url)
    async with bot(server, path) as telegram:
        await server.wait_until(lambda: server.counts["getUpdates"])
        await other.call("getUpdates", {"timeout": 0})
        while telegram.trouble is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert telegram.trouble.startswith("Another program receives")
        server.say(7, "hello")
        await says(server, 7, 1)
        assert telegram.trouble is None
    await other.aclose()
    assert caplog.text.count("Another program receives") == 1


async def test_outages_are_outlasted(server, path, caplog):
    await server.go_down()
    async with bot(server, path) as telegram:
        while telegram.trouble is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        server.say(7, "hello")
        await server.come_up()
        server.fail(Fault("502", method="getUpdates"), Fault("garbage", method="getUpdates"))
        assert await says(server, 7, 1) == ["You said: hello"]
        await confirmed(server)
    assert caplog.text.count("Telegram cannot be reached") == 1
    assert "come from Telegram again" in caplog.text


async def test_the_token_shows_up_nowhere(server, path, caplog, tmp_path):
    caplog.set_level(0)
    seen = []

    async def talk(turn):
        seen.append(repr(turn.history) + turn.text)
        raise RuntimeError("broken")

    faults = [
        Fault("reset"),
        Fault("502", taken=True),
        Fault("garbage"),
        Fault("reset", taken=True),
    ]
    server.fail(*faults)
    async with bot(server, path, talk) as telegram:
        server.say(7, "hello")
        await says(server, 7, 1)
        server.revoke()
        server.say(7, "x")
        while telegram.trouble is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        seen += [repr(telegram), str(telegram.trouble), repr(vars(telegram)), *texts(server, 7)]
    for record in caplog.records:
        seen.append(record.getMessage())
        if record.exc_info and record.exc_info[1]:
            seen += traceback.TracebackException.from_exception(
                record.exc_info[1], capture_locals=True
            ).format()
    seen += [file.read_bytes().decode(errors="replace") for file in tmp_path.glob("state.db*")]
    assert SECRET not in "".join(seen)
    assert len(caplog.records) > 10


def test_the_account_is_the_bot_and_the_key_names_no_person():
    telegram = Telegram(Secret(TOKEN))
    assert (telegram.platform, telegram.account) == ("telegram", TOKEN.partition(":")[0])
    source = Source("telegram", telegram.account, "7", user_id="7", user_name="Anna")
    assert session_key(source) == "agent:main:telegram:dm:7"
