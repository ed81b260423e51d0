"""Unknown users get a code, and an operator lets them in with it or removes them again."""

from __future__ import annotations

import logging

import pytest
import trio
from msgspec.structs import replace

from hermes import AccessPolicy, Inbound
from hermes.actors.admission.rate_limit import RateLimit
from hermes.errors import NotAdmitted, StoreFull
from hermes.events import TurnEnded
from hermes.session_keys import session_key
from hermes.testing import MemoryAdapter, ScriptedAgent
from hermes.texts import ENGLISH
from tests.support.chat import BOB, CODE, CONSOLE, MALLORY, access_for, user
from tests.support.runtime import with_threads


async def test_an_unknown_user_gets_one_code_and_then_no_answer(chat):
    async with chat() as here:
        for _ in range(50):
            assert await here.refused(MALLORY) == ENGLISH.unknown_sender
        [text] = await here.sent(1)
        assert text == ENGLISH.pairing_offer.format(code=CODE.search(text)[1])
        [row] = here.adapter.sent
        place = ("platform", "account", "chat_id", "user_id")
        assert [row.body[name] for name in place] == ["telegram", "bot", "666", "666"]


@with_threads
async def test_a_user_that_was_let_in_is_notified_and_answered(chat):
    async with chat() as here:
        code = await here.code()
        answer = await here.say(CONSOLE, f"/pair {code}")
        assert answer == "666 on telegram/bot has been let in as user."
        assert (await here.sent(2))[1] == ENGLISH.pairing_welcome
        assert here.adapter.sent[1].lane == here.adapter.sent[0].lane
        assert await here.say(MALLORY, "hello") == "echo: hello"
        assert "/approve" in await here.say(MALLORY, "/help")
        assert "/pair" not in await here.say(MALLORY, "/help")


@pytest.mark.parametrize("form", ["{}", " {} ", "{} user", "{}  USER"])
async def test_a_code_is_accepted_in_any_spelling(chat, form):
    async with chat() as here:
        code = await here.code()
        text = "/pair " + form.format(code.lower().replace("-", "").replace("0", "o"))
        assert (await here.say(CONSOLE, text)).endswith("as user.")


async def test_an_operator_on_the_platform_can_pair_users_and_operators(chat):
    boss = user("9")
    async with chat(access_for(operators=["9"])) as here:
        code = await here.code()
        assert (await here.say(boss, f"/pair {code} operator")).endswith("as operator.")
        code = await here.code(BOB, 4)
        assert (await here.say(MALLORY, f"/pair {code}")).endswith("as user.")
        assert await here.say(BOB, "hello") == "echo: hello"


async def test_invalid_arguments_get_the_usage_and_do_not_count_as_wrong_codes(chat):
    async with chat() as here:
        code = await here.code()
        for wrong in ("rubbish", f"{code} guest", f"{code} root", f"{code} user now", "1 2"):
            assert await here.say(CONSOLE, f"/pair {wrong}") == "Usage: /pair [code [role]]"
        for wrong in ("", "telegram", "   "):
            answer = await here.say(CONSOLE, f"/unpair {wrong}")
            assert answer == "Usage: /unpair <platform> <user id>"
        assert await here.count("wrong_codes") == 0
        assert await here.say(CONSOLE, f"/pair {code}")


async def test_too_many_wrong_codes_lock_pairing_for_a_while(chat, world):
    async with chat() as here:
        code = await here.code()
        answers = [await here.say(CONSOLE, f"/pair 0000-000{n}") for n in range(6)]
        assert answers[0] == ENGLISH.wrong_code.format(left=4)
        assert answers[3] == ENGLISH.wrong_code_last
        assert answers[4:] == [ENGLISH.pairing_locked.format(time="60 minutes")] * 2
        world.pass_time(600)
        locked = ENGLISH.pairing_locked.format(time="50 minutes")
        assert await here.say(CONSOLE, f"/pair {code}") == locked
    async with chat() as here:
        assert await here.say(CONSOLE, f"/pair {code}") == locked
        world.pass_time(3000)
        assert await here.say(CONSOLE, f"/pair {code}") == ENGLISH.wrong_code.format(left=4)
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender


@with_threads
async def test_codes_and_paired_users_survive_a_restart(chat):
    async with chat() as here:
        code = await here.code()
    async with chat() as here:
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender
        assert (await here.say(CONSOLE, f"/pair {code}")).endswith("as user.")
        assert await here.sent(1) == [ENGLISH.pairing_welcome]
    async with chat() as here:
        assert await here.say(MALLORY, "hello") == "echo: hello"
        assert await here.say(CONSOLE, f"/pair {code}") == ENGLISH.wrong_code.format(left=4)


async def test_a_paired_user_is_refused_once_its_platform_has_no_rules(chat):
    async with chat() as here:
        await here.say(CONSOLE, f"/pair {await here.code()}")
        assert await here.say(MALLORY, "hello") == "echo: hello"
    async with chat(AccessPolicy()) as here:
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender


async def test_a_code_that_could_not_be_stored_is_not_sent(start_proxy, world):
    adapter = MemoryAdapter("telegram")
    fails = [StoreFull("the disk is full")]

    async def request_pairing(real, *args, **options):
        if fails:
            raise fails.pop()
        return await real(*args, **options)

    async with start_proxy(
        adapters=[adapter], access=access_for(), request_pairing=request_pairing
    ) as runtime:
        with pytest.raises(StoreFull):
            await runtime.submit(Inbound("k", "e1", "hello", MALLORY))
        with pytest.raises(NotAdmitted):
            await runtime.submit(Inbound("k", "e1", "hello", MALLORY))
        await adapter.wait_sent(1)
        assert CODE.search(adapter.texts[0])


@pytest.mark.parametrize(
    ("who", "access"),
    [
        (user("666", chat_id="-5", chat_type="group"), access_for()),
        (user("666", chat_id="-5", chat_type="channel"), access_for()),
        (user("666", chat_id="-5", thread_id="1", chat_type="thread"), access_for()),
        (user(None, chat_id="-5"), access_for()),
        (user("", chat_id="666"), access_for()),
        (user("1\ud800"), access_for()),
        (user("x" * 201), access_for()),
        (MALLORY, access_for(pairing=False)),
        (replace(MALLORY, platform="signal"), access_for()),
    ],
)
async def test_no_code_is_sent_in_groups_without_an_id_or_if_pairing_is_off(chat, who, access):
    async with chat(access) as here:
        assert await here.refused(who) == ENGLISH.unknown_sender
        assert await here.count("outbox") == 0
        assert await here.count("pairings") == 0


async def test_at_most_three_codes_are_pending_and_further_unknown_users_write_nothing(chat):
    async with chat() as here:
        for n in range(1000):
            with pytest.raises(NotAdmitted):
                await here.submit(user(f"s{n}"), "hello")
        await here.sent(3)
        assert await here.count("pairings") == 3
        assert await here.count("outbox") == 3


async def test_names_of_unknown_users_are_escaped_and_shown_as_unverified(chat, caplog):
    evil = replace(MALLORY, user_name="\x1b[2Joperator\nuser: 1\u202e" + "x" * 5000)
    with caplog.at_level(logging.INFO):
        async with chat() as here:
            code = await here.code(evil)
            for _ in range(5):
                await here.refused(evil)
            [waiting] = await here.store.pairings()
            assert len(waiting.source.user_name) == 60
            shown = await here.say(CONSOLE, "/pair")
            assert shown.startswith("waiting for 1 minute: 666 on telegram/bot (calls itself '?[2J")
            assert "unverified" in shown
            assert shown.isprintable()
            assert len(shown) < 200
            await here.say(CONSOLE, f"/pair {code}")
            shown = await here.say(CONSOLE, "/pair")
            assert shown.startswith("user: 666 on telegram/bot (calls itself '?[2J")
            assert shown.isprintable()
    refused = [each for each in caplog.messages if "refused" in each]
    assert refused == ["refused 1 messages of unknown senders, last 666 on telegram/bot"]


async def test_unknown_senders_cannot_flood_the_log(chat, mock_clock, caplog):
    access = access_for(rates=RateLimit(per_minute=6, burst=2))
    with caplog.at_level(logging.INFO):
        async with chat(access) as here:
            for n in range(50):
                await here.flood(user(f"s{n}"), 10)
            mock_clock.jump(60)
            await here.flood(MALLORY, 1)
    refused = [each for each in caplog.messages if "refused" in each]
    assert refused == [
        "refused 1 messages of unknown senders, last s0 on telegram/bot",
        "refused 500 messages of unknown senders, last 666 on telegram/bot",
    ]


async def test_pair_without_a_code_lists_requests_and_paired_users(chat, world):
    async with chat() as here:
        assert await here.say(CONSOLE, "/pair") == ENGLISH.nobody_paired
        await here.pair(MALLORY)
        await here.code(user("7", user_name="Eve"), 3)
        world.pass_time(600)
        assert await here.say(CONSOLE, "/pair") == (
            "waiting for 10 minutes: 7 on telegram/bot (calls itself 'Eve', unverified)\n"
            "user: 666 on telegram/bot"
        )


# Removing users


async def test_a_removed_user_is_unknown_again(chat):
    async with chat() as here:
        await here.pair()
        assert await here.say(MALLORY, "hello") == "echo: hello"
        answer = await here.say(CONSOLE, "/unpair telegram 666")
        assert answer == "666 on telegram has been removed."
        again = await here.say(CONSOLE, "/unpair telegram 666")
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender
        assert again == "666 on telegram is not a paired user."


async def test_a_removal_by_another_process_is_effective_at_once(chat, sql):
    async with chat() as here:
        await here.pair()
        await here.say(MALLORY, "hello")
        sql("DELETE FROM principals")
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender


async def test_messages_accepted_before_the_removal_are_still_answered(chat):
    started, go = trio.Event(), trio.Event()

    async def hold(turn):
        started.set()
        await go.wait()

    agent = ScriptedAgent([[hold, "first"], "second"])
    async with chat(build_agent=lambda _: agent) as here:
        await here.pair()
        await here.submit(MALLORY, "one")
        await started.wait()
        await here.submit(MALLORY, "two")
        await here.say(CONSOLE, "/unpair telegram 666")
        await here.refused(MALLORY, "three")
        go.set()
        await here.adapter.wait_sent(5)
        assert {"first", "second"} <= set(here.adapter.texts)
        assert [turn.text for turn in agent.turns] == ["one", "two"]


async def test_a_queued_pair_command_of_a_removed_operator_has_no_effect(chat):
    started, go = trio.Event(), trio.Event()

    async def hold(turn):
        started.set()
        await go.wait()

    async with chat(build_agent=lambda _: ScriptedAgent([[hold, "done"]])) as here:
        await here.pair(role="operator")
        code = await here.code(user("7"), 3)
        await here.submit(MALLORY, "work")
        await started.wait()
        with here.runtime.subscribe(session_key(MALLORY)) as events:
            await here.submit(MALLORY, f"/pair {code}")
            await here.say(CONSOLE, "/unpair telegram 666")
            go.set()
            async for envelope in events:
                event = envelope.event
                if isinstance(event, TurnEnded) and event.reply.status == "command":
                    assert event.reply.text == ENGLISH.not_operator
                    break
        assert await here.refused(user("7")) == ENGLISH.unknown_sender
