"""The loopback Bot API has the semantics and the limits of the real one."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio

from hermes.adapters.telegram.api import BotApi, Conflict, Refused, Revoked, Unreachable
from hermes.errors import OutcomeUnknown, RetryAfter
from hermes.redaction import Secret
from hermes.testing.telegram import (
    DAY,
    TOKEN,
    WEEK,
    Fault,
    Limits,
    open_telegram,
)


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        opened.private(7)
        yield opened


@pytest.fixture
async def call(server):
    api = BotApi(Secret(TOKEN), server.url)

    async def call(method, **params):
        return json.loads(bytes(await api.call(method, params)))

    yield call
    await api.aclose()


async def update_ids(call, **params):
    return [update["update_id"] for update in await call("getUpdates", **params)]


async def test_an_update_is_sent_again_until_an_offset_above_it_confirms_it(server, call):
    server.say(7, "one")
    server.say(7, "two")
    first, second = await update_ids(call)
    assert second == first + 1
    assert await update_ids(call) == [first, second]
    assert await update_ids(call, offset=first) == [first, second]
    assert await update_ids(call, limit=1) == [first]
    assert await update_ids(call, offset=second) == [second]
    assert await update_ids(call) == [second]
    assert await update_ids(call, offset=second + 1) == []
    assert server.pending == 0


async def test_a_negative_offset_drops_all_before_it(server, call):
    for text in "abc":
        server.say(7, text)
    assert len(await update_ids(call, offset=-1)) == 1
    assert server.pending == 1


async def test_updates_are_kept_for_a_day(server, call):
    server.say(7, "old")
    server.pass_time(DAY / 2)
    server.say(7, "newer")
    server.pass_time(DAY / 2)
    assert len(await update_ids(call)) == 1


async def test_after_an_idle_week_update_ids_start_again(server, call):
    server.say(7, "before")
    (before,) = await update_ids(call)
    await update_ids(call, offset=before + 1)
    server.pass_time(WEEK)
    server.say(7, "after")
    (after,) = await update_ids(call)
    assert after < before
    assert await update_ids(call, offset=before + 1) == []  # lower ids are confirmed


async def test_update_ids_are_not_used_twice_after_many_idle_weeks(server):
    used = []
    for _ in range(30):
        used += [server.update("message", {}) for _ in range(10)]
        server.pass_time(WEEK)
    assert len(set(used)) == len(used)
    assert used[-1] < used[0]


async def test_a_poll_waits_for_updates_until_its_timeout(server, call, autojump_clock):
    autojump_clock.autojump_threshold = 0.02  # sockets need some real time
    assert await update_ids(call, timeout=0) == []
    begun = trio.current_time()
    assert await update_ids(call, timeout=5) == []
    assert 5 <= trio.current_time() - begun < 6
    found = []
    async with trio.open_nursery() as nursery:

        async def poll():
            found.extend(await update_ids(call, timeout=60))

        nursery.start_soon(poll)
        await server.wait_until(lambda: server.counts["getUpdates"] == 3)
        server.say(7, "now")
    assert len(found) == 1


async def test_of_two_polls_the_older_one_is_terminated(server, call):
    async with trio.open_nursery() as nursery:

        async def older():
            with pytest.raises(Conflict, match="Another program"):
                await call("getUpdates", timeout=60)

        nursery.start_soon(older)
        await server.wait_until(lambda: server.counts["getUpdates"])
        assert await update_ids(call, timeout=0) == []
    assert server.conflicts == 1


async def test_only_the_requested_kinds_of_updates_are_sent(server, call):
    await call("getUpdates", allowed_updates=["message"])
    assert server.update("callback_query", {"id": "1"}) is None
    server.say(7, "hi")
    assert len(await update_ids(call)) == 1


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"text": "x" * 4097}, "message is too long"),
        ({"text": "😀" * 2049}, "message is too long"),
        ({"text": "  "}, "message text is empty"),
        ({"text": "a.b", "parse_mode": "MarkdownV2"}, "can't parse entities: Character '.'"),
        ({"text": "x", "chat_id": 99}, "chat not found"),
        ({"text": "x", "message_thread_id": 5}, "message thread not found"),
        ({"text": "x", "message_thread_id": 1}, "message thread not found"),
    ],
)
async def test_messages_that_telegram_refuses(server, call, params, why):
    with pytest.raises(Refused, match="400") as refused:
        await call("sendMessage", **{"chat_id": 7, **params})
    assert why.lower() in refused.value.why
    assert not server.private(7).texts


async def test_a_message_and_its_edits_are_recorded(server, call):
    sent = await call("sendMessage", chat_id=7, text="*a* b", parse_mode="MarkdownV2")
    server.say(7, "between")
    number = sent["message_id"]
    await call("editMessageText", chat_id=7, message_id=number, text="c")
    (shown,) = server.private(7).messages
    assert (shown.text, shown.versions) == ("c", ["a b"])
    with pytest.raises(Refused) as same:
        await call("editMessageText", chat_id=7, message_id=number, text="c")
    assert "message is not modified" in same.value.why
    with pytest.raises(Refused) as missing:
        await call("editMessageText", chat_id=7, message_id=999, text="c")
    assert "message to edit not found" in missing.value.why


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (Limits(per_chat=(1, 9.5)), 1),
        (Limits(per_chat=(9, 1.0), per_group=(3, 9.5)), 3),
        (Limits(per_chat=(9, 1.0), per_token=(4, 9.5)), 4),
    ],
)
async def test_too_many_messages_are_refused_with_a_delay(limits, count):
    async with open_telegram(limits=limits) as server:
        server.group(-5)
        api = BotApi(Secret(TOKEN), server.url)
        for _ in range(count):
            await api.call("sendMessage", {"chat_id": -5, "text": "x"})
        with pytest.raises(RetryAfter) as wait:
            await api.call("sendMessage", {"chat_id": -5, "text": "x"})
        assert wait.value.seconds == 10
        server.pass_time(9.5)
        await api.call("sendMessage", {"chat_id": -5, "text": "x"})
        assert len(server.chats[-5].texts) == count + 1
        await api.aclose()


async def test_chats_that_are_gone_or_have_a_new_id(server, call):
    server.private(8).gone = "bot was blocked by the user"
    with pytest.raises(Refused, match="403: Forbidden: bot was blocked by the user"):
        await call("sendMessage", chat_id=8, text="x")
    server.group(-5, "group")
    server.migrate(-5, -1005)
    with pytest.raises(Refused, match="upgraded to a supergroup") as moved:
        await call("sendMessage", chat_id=-5, text="x")
    assert moved.value.migrate_to == -1005
    first, second = (update["message"] for update in await call("getUpdates"))
    assert (first["chat"]["id"], first["migrate_to_chat_id"]) == (-5, -1005)
    assert (second["chat"]["id"], second["migrate_from_chat_id"]) == (-1005, -5)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("kind", ["reset", "502", "garbage"])
async def test_a_response_can_be_lost_before_or_after_the_message_is_taken(
    server, call, kind, taken
):
    server.fail(Fault(kind, taken=taken, method="sendMessage"))
    await call("getMe")
    with pytest.raises(OutcomeUnknown):
        await call("sendMessage", chat_id=7, text="x")
    assert len(server.private(7).texts) == taken


async def test_a_server_that_is_down_takes_nothing(server, call):
    await call("getMe")
    await server.go_down()
    with pytest.raises(Unreachable):
        await call("sendMessage", chat_id=7, text="x")
    await server.come_up()
    await call("sendMessage", chat_id=7, text="y")
    assert server.private(7).texts == ["y"]


async def test_a_revoked_token(server, call):
    server.revoke()
    with pytest.raises(Revoked, match="get a new one from @BotFather"):
        await call("getMe")


@pytest.mark.parametrize("token", ["", "nonsense", "12:a b", "12:ä", "1:x\r\ny"])
async def test_an_invalid_token_is_not_sent(server, token):
    api = BotApi(Secret(token), server.url)
    with pytest.raises(Revoked):
        await api.call("getMe", {})
    assert api.bot_id == ""
    await api.aclose()
    assert not server.calls


async def test_the_http_client_never_sees_the_token(server, call, caplog):
    """Its log lines and errors show the URL that it was given, which has no token."""
    caplog.set_level(0)
    await call("getMe")
    server.fail(Fault("reset"), Fault("502"), Fault("garbage"))
    for error in (OutcomeUnknown, OutcomeUnknown, OutcomeUnknown):
        with pytest.raises(error) as failed:
            await call("getMe")
        assert failed.value.__context__ is None
        assert TOKEN not in repr(failed.value)
    await server.go_down()
    with pytest.raises(Unreachable) as failed:
        await call("getMe")
    assert failed.value.__context__ is None
    assert any("HTTP Request" in record.getMessage() for record in caplog.records)
    assert TOKEN not in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text
    assert TOKEN not in repr(httpx2.URL(server.url))
