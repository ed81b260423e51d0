"""The Telegram adapter receives messages: confirmation, access, groups."""

from __future__ import annotations

import attrs
import pytest
import trio

from hermes import AccessPolicy, PlatformRules, open_runtime
from hermes.actors.admission.rate_limit import RateLimit
from hermes.adapters.telegram import Telegram
from hermes.errors import NotAdmitted, Overloaded, StoreBusy, StoreFull
from hermes.messages import TurnResult
from hermes.redaction.keys import Secret
from hermes.store import SessionStore
from hermes.testing.telegram import TOKEN, WEEK, Fault, open_telegram
from tests.support.telegram_bot import (
    NO_BURSTS,
    FailingRuntime,
    echo,
    running_bot,
    texts,
    wait_confirmed,
    wait_texts,
)


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


async def test_a_message_is_answered_and_confirmed(server, path):
    server.say(7, "hello")
    async with running_bot(server, path):
        assert await wait_texts(server, 7, 1) == ["You said: hello"]
        await wait_confirmed(server)
    (shown,) = server.chats[7].messages
    assert (shown.reply_to, shown.thread_id) == (None, None)


async def test_messages_sent_before_the_start_are_answered_too(server, path):
    for number in range(3):
        server.say(7 + number, f"early {number}")
    async with running_bot(server, path):
        for number in range(3):
            assert await wait_texts(server, 7 + number, 1) == [f"You said: early {number}"]


async def test_the_offset_is_sent_once_and_only_for_processed_updates(server, path):
    first = server.update("message", {"message_id": 1, "chat": {"id": 7}, "text": "x"})
    async with running_bot(server, path):
        server.private(7)
        await wait_confirmed(server)
        await server.wait_until(lambda: server.counts["getUpdates"] >= 2)
        server.say(7, "y")
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
    offsets = [params.get("offset") for method, params in server.calls if method == "getUpdates"]
    assert [each for each in offsets if each] == [first + 1, first + 2]
    assert all("drop_pending_updates" not in params for _, params in server.calls)
    assert all(each is None or each > 0 for each in offsets)


async def test_an_update_is_confirmed_only_after_it_is_on_disk(server, path):
    """If the store cannot accept it, Telegram keeps it and sends it again."""
    errors = [StoreBusy("busy"), StoreFull("full"), StoreBusy("busy")]
    waiting = []

    class Watching(FailingRuntime):
        async def submit(self, inbound):
            waiting.append(server.pending)
            return await super().submit(inbound)

    server.say(7, "one")
    server.say(7, "two")
    async with running_bot(
        server, path, wrap_runtime=lambda runtime: Watching(runtime, errors)
    ) as telegram:
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
        assert telegram.problem is None
    assert waiting == [2, 2, 2, 2, 2]


async def test_an_update_that_was_processed_but_not_confirmed_is_not_answered_twice(server, path):
    server.say(7, "hello")
    async with running_bot(server, path):
        await wait_texts(server, 7, 1)
    # The poll that would have confirmed it may have been lost.
    server.say(7, "again")
    server.fail(Fault(method="getUpdates", taken=True))
    async with running_bot(server, path):
        await wait_texts(server, 7, 2)
        await wait_confirmed(server)
    assert texts(server, 7) == ["You said: hello", "You said: again"]


async def test_after_an_idle_week_a_lower_update_id_is_not_a_duplicate(server, path):
    async with running_bot(server, path):
        server.say(7, "before")
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
        seen = server.counts["getUpdates"]
        server.pass_time(WEEK + 1)
        server.say(7, "after")
        assert (await wait_texts(server, 7, 2))[-1] == "You said: after"
        await wait_confirmed(server)
        assert server.counts["getUpdates"] > seen


async def test_invalid_updates_are_skipped(server, path, caplog):
    deep = b"[" * 50_000 + b"]" * 50_000
    server.raw_update("message", b'{"message_id":1,"chat":"x"}')
    server.say(7, "one")
    server.raw_update("message", b'{"message_id":1,"chat":' + deep + b"}")
    server.raw_update("message", b'{"message_id":2,"chat":' + deep + b"}")
    server.say(7, "two")
    async with running_bot(server, path):
        assert len(await wait_texts(server, 7, 1)) >= 1
        await wait_confirmed(server)
        await server.wait_until(lambda: "two" in "".join(texts(server, 7)))
    assert caplog.text.count("is skipped") == 3


async def test_a_message_that_is_not_admitted_is_confirmed(server, path):
    errors = [NotAdmitted("7 is not on the list")]
    server.say(7, "let me in")
    server.say(8, "hello")
    async with running_bot(
        server, path, wrap_runtime=lambda runtime: FailingRuntime(runtime, errors)
    ):
        assert await wait_texts(server, 8, 1) == ["You said: hello"]
        await wait_confirmed(server)
    assert texts(server, 7) == []


async def test_rate_limits_use_the_time_of_sending(server, path):
    """After an outage the messages of a day arrive at once, and must not exceed the limits."""
    door = AccessPolicy(
        rules={"telegram": PlatformRules(users=[7, 8])}, rates=RateLimit(per_minute=2, burst=2)
    )
    for number in range(9):
        server.say(7, f"now and then {number}")
        server.pass_time(60)
    for number in range(9):
        server.say(8, f"at once {number}")
    received = []

    async def listen(turn):
        received.extend(message.content for message in turn.input)
        return "so be it"

    async with running_bot(server, path, listen, access=door):
        await wait_confirmed(server)
        await server.wait_until(lambda: any("too quickly" in text for text in texts(server, 8)))
    assert sorted(received) == [
        *(f"at once {number}" for number in range(2)),
        *(f"now and then {number}" for number in range(9)),
    ]


async def test_unknown_users_do_not_flood_the_log(server, path, caplog):
    caplog.set_level("INFO")
    for number in range(20):
        server.say(7, f"spam {number}")
    async with running_bot(
        server, path, access=AccessPolicy(rules={"telegram": PlatformRules(users=[1])})
    ):
        await wait_confirmed(server)
    assert sum("refused" in line for line in caplog.messages) == 1


async def test_an_overloaded_runtime_is_reported_to_the_user(server, path):
    errors = [Overloaded("too much")]
    server.say(7, "x")
    server.say(8, "hello")
    async with running_bot(
        server, path, wrap_runtime=lambda runtime: FailingRuntime(runtime, errors)
    ):
        assert await wait_texts(server, 8, 1) == ["You said: hello"]
        (sentence,) = await wait_texts(server, 7, 1)
        assert "not accepted" in sentence
        await wait_confirmed(server)


async def test_the_bot_stops_when_its_runtime_drains(server, path):
    ended = trio.Event()
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, group_policy=NO_BURSTS) as telegram,
        open_runtime(
            path, agent=echo, adapters=[telegram], access=AccessPolicy.everyone()
        ) as runtime,
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
async def test_an_edit_is_submitted_only_if_the_policy_says_so(server, path, edits):
    policy = attrs.evolve(NO_BURSTS, edits=edits)
    async with running_bot(server, path, group_policy=policy):
        number = server.say(7, "helo")
        await wait_texts(server, 7, 1)
        server.post(7, kind="edited_message", message_id=number, text="hello")
        server.say(8, "done")
        await wait_texts(server, 8, 1)
        if edits:
            await wait_texts(server, 7, 2)
        await wait_confirmed(server)
    assert texts(server, 7)[1:] == (["You said: (edited) hello"] if edits else [])
    with SessionStore(path) as store:
        session_id = store.get_route("agent:main:telegram:dm:7").session_id
        said = [row for row in store.get_messages(session_id) if row.role == "user"]
    ids = [(row.platform_message_id, row.edits) for row in said]
    assert ids == [(str(number), None), (str(number), str(number))][: 1 + edits]
    assert {row.chat for row in said} == {f"{server.me['id']}/7"}


# Groups


async def test_in_a_group_it_answers_mentions_and_replies_to_the_message(server, path):
    group = server.group(-100)
    async with running_bot(server, path):
        server.say(-100, "hello all", user_id=7)
        asked = server.say(-100, "hi @hermes_bot there", user_id=7)
        assert await wait_texts(server, -100, 1) == ["You said: hi there"]
        await wait_confirmed(server)
    assert group.messages[0].reply_to == asked


async def test_a_topic_is_answered_in_the_topic_and_the_general_one_without_its_id(server, path):
    forum = server.group(-100, is_forum=True, topics={9})
    async with running_bot(server, path):
        server.say(-100, "@hermes_bot here", user_id=7, topic=9)
        await wait_texts(server, -100, 1)
        server.say(-100, "@hermes_bot there", user_id=7)
        await wait_texts(server, -100, 2)
    assert [(each.text, each.thread_id) for each in forum.messages] == [
        ("You said: user 7: here", 9),
        ("You said: user 7: there", None),
    ]


async def test_an_album_is_one_turn(server, path):
    turns = []

    async def look(turn):
        turns.append([part["name"] for m in turn.input for part in m.parts or ()])
        return f"{len(turns[-1])} pictures: {turn.text}"

    async with running_bot(server, path, look):
        for number in range(3):
            caption = {"caption": "my garden"} if not number else {}
            photo = [server.files.add(b"content", file_name=f"p{number}")]
            server.post(7, photo=photo, media_group_id="g", **caption)
            await wait_confirmed(server)  # each one came for itself
        (said,) = await wait_texts(server, 7, 1)
        await wait_confirmed(server)
    assert turns == [["p0", "p1", "p2"]]
    assert said.startswith("3 pictures: my garden")


async def test_a_group_that_becomes_a_supergroup_keeps_its_conversations(server, path):
    """Also replies that were not sent yet, and also after a restart."""
    server.group(-5, "group", title="us")
    counting = Counting()
    async with running_bot(server, path, counting):
        server.say(-5, "@hermes_bot one", user_id=7)
        await wait_texts(server, -5, 1)
        counting.before_answer = lambda: server.migrate(-5, -1005)
        server.say(-5, "@hermes_bot two", user_id=7)
        assert await wait_texts(server, -1005, 1) == ["2: two"]
        await wait_confirmed(server)
        counting.before_answer = lambda: None
        server.say(-1005, "@hermes_bot three", user_id=7)
        assert (await wait_texts(server, -1005, 2))[-1] == "3: three"
    async with running_bot(server, path, counting):
        server.say(-1005, "@hermes_bot four", user_id=7)
        assert (await wait_texts(server, -1005, 3))[-1] == "4: four"


@attrs.define
class Counting:
    """An agent that counts the user messages of a conversation."""

    before_answer: object = lambda: None

    async def run(self, turn):
        self.before_answer()
        asked = [message for message in turn.history if message.role == "user"]
        return TurnResult(text=f"{len(asked) + 1}: {turn.text}")

    def __call__(self, spec):
        return self
