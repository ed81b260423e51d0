"""Access control of every entry point of a runtime: admission and rate limits."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace

from hermes import Config, Inbound, Source
from hermes.actors.admission.access import AccessPolicy, PlatformRules
from hermes.actors.admission.rate_limit import RateLimit
from hermes.actors.commands import COMMANDS
from hermes.embed import open_runtime, open_runtime_asyncio, start_runtime
from hermes.errors import NotAdmitted, RateLimited
from hermes.session_keys import session_key
from hermes.testing import CountingBuilder, ScriptedAgent, forever, inspect
from hermes.texts import ENGLISH
from tests.support.chat import ALICE, BOB, CODE, CONSOLE, MALLORY, access_for, user
from tests.support.runtime import with_threads


async def stream(runtime, key, source):
    async with runtime.stream(key, "hello", source=source) as events:
        return [event async for event in events]


PATHS = {
    "submit": lambda runtime, key, who: runtime.submit(Inbound(key, "e", "hello", who)),
    "command": lambda runtime, key, who: runtime.submit(
        Inbound(key, "e", "/new", who, command=True)
    ),
    "ask": lambda runtime, key, who: runtime.ask(key, "hello", source=who),
    "ask a command": lambda runtime, key, who: runtime.ask(key, "/status", source=who),
    "stream": stream,
    "steer": lambda runtime, key, who: runtime.conversation(key).steer("hello", source=who),
    "undo": lambda runtime, key, who: runtime.ask(key, "/undo 1", source=who),
    "retry": lambda runtime, key, who: runtime.conversation(key).retry(source=who),
    "ask without a source": lambda runtime, key, who: runtime.ask(key, "hello"),
    "steer without a source": lambda runtime, key, who: runtime.conversation(key).steer("hello"),
    "undo without a source": lambda runtime, key, who: runtime.ask(key, "/undo 1"),
    "retry without a source": lambda runtime, key, who: runtime.conversation(key).retry(),
}


SENDERS = {
    "unknown": MALLORY,
    "look-alike id": user("１"),
    "an id in another case": user("a"),
    "the name of a known user": user("666", user_name="1"),
    "no id": user(None, chat_id="1"),
    "an empty id": user("", chat_id="1"),
    "an unpaired surrogate": user("1\ud800"),
    "the chat of a known user": user("666", chat_id="1"),
    "a platform without rules": replace(ALICE, platform="signal"),
    "a platform that looks like it": replace(ALICE, platform="Telegram"),
    "a group": user("666", chat_id="-5", chat_type="group"),
    "the operator's id on another platform": user("operator"),
    "a console without its operator": Source("console", user_id="1"),
    "a program": Source(user_id="1"),
}


@pytest.mark.parametrize("path_name", PATHS)
async def test_an_unknown_sender_reaches_no_agent_and_leaves_no_trace(chat, path_name):
    build = CountingBuilder()
    async with chat(access_for(users=["1", "A"]), build_agent=build) as here:
        before = await here.traces()
        for name, who in SENDERS.items():
            # Also in the conversation of an admitted user.
            for key in (session_key(who), session_key(ALICE)):
                with pytest.raises(NotAdmitted):
                    await PATHS[path_name](here.runtime, key, who)
                assert await here.traces() == before, name
        assert (await here.runtime.admin.statistics()).actors == 0
    assert len(build) == 0


@with_threads
async def test_configured_users_and_the_console_are_answered(chat):
    async with chat(access_for(users=["1"], operators=["9"])) as here:
        assert await here.say(ALICE, "hello") == "echo: hello"
        assert await here.say(user("9"), "hi") == "echo: hi"
        assert await here.say(CONSOLE, "hey") == "echo: hey"
        assert await here.say(ALICE, "/undo 1") == "Taken back: hello"
        console = here.runtime.conversation(session_key(CONSOLE))
        assert (await console.retry(source=CONSOLE)).status == "complete"


async def test_without_access_control_everybody_is_answered(chat):
    async with chat(access=None) as here:
        assert await here.say(MALLORY, "hello") == "echo: hello"
        assert (await here.runtime.ask("k", "hello")).text == "echo: hello"
        assert await here.say(MALLORY, "/pair") == ENGLISH.no_access_control
        assert await here.say(MALLORY, "/unpair telegram 1") == ENGLISH.no_access_control
        assert "/pair" not in await here.say(MALLORY, "/help")


async def test_ids_must_be_strings(chat):
    async with chat() as here:
        for wrong in ({"user_id": 1}, {"chat_id": ["1"]}, {"account": 7}, {"platform": None}):
            name = next(iter(wrong))
            with pytest.raises(TypeError, match=f"^source.{name} must be a string, not "):
                await here.runtime.submit(Inbound("k", "e", "x", replace(ALICE, **wrong)))


def test_the_other_hosts_have_the_same_access_control(path):
    async def reply(turn):
        return "never"

    with start_runtime(path, agent=reply, access=access_for(users=["1"])) as runtime:
        with pytest.raises(NotAdmitted):
            runtime.ask("k", "hello", source=MALLORY)
        assert runtime.ask("k", "/whoami", source=ALICE).text.startswith(
            "You are 1 on telegram, user"
        )

    async def main():
        async with open_runtime_asyncio(
            path, agent=reply, access=access_for(users=["1"])
        ) as runtime:
            with pytest.raises(NotAdmitted):
                await runtime.ask("k", "hello", source=MALLORY)
            with pytest.raises(NotAdmitted):
                async with runtime.stream("k", "hello", source=MALLORY):
                    pass

    asyncio.run(main())


# Roles


OF_CONSOLE = {"quit", "attach", "detach", "save"}
"""Unknown elsewhere, whatever the role."""


def usable(role):
    order = ["guest", "user", "operator"]
    return {n for n, each in COMMANDS.items() if order.index(each.role) <= order.index(role)}


@pytest.mark.parametrize("role", ["guest", "user", "operator"])
async def test_each_role_can_use_its_own_commands_only(chat, role):
    access = access_for(open=True, users=["2"], operators=["3"])
    who = user({"guest": "1", "user": "2", "operator": "3"}[role])
    async with chat(access) as here:
        await here.say(who, "hello")
        for name in sorted(usable(role)):
            await here.submit(who, f"/{name}")
        for name in sorted(set(COMMANDS) - usable(role) - OF_CONSOLE):
            refusal = await here.refused(who, f"/{name} 1")
            assert refusal == ENGLISH.role_too_low.format(command=f"/{name}", role=role)
        helped = set(re.findall(r"^/([a-z]+)", await here.say(who, "/help"), re.MULTILINE))
        assert helped == usable(role) - OF_CONSOLE
        assert f", {role};" in await here.say(who, "/whoami")


async def test_a_refusal_is_no_notice_on_a_platform_without_an_adapter(path):
    """There the error says it, and nobody would collect a row of the outbox."""
    access = AccessPolicy(
        rules={"web": PlatformRules(users=["1"], pairing=False)},
        rates=RateLimit(per_minute=0.01, burst=2),
    )
    web = Source("web", chat_id="1", user_id="1")

    async def reply(turn):
        return turn.text

    async with open_runtime(path, agent=reply, access=access) as runtime:
        await runtime.ask("k", "hello", source=web)
        count = "SELECT count(*) FROM outbox"
        rows = await inspect(runtime).store.browse(lambda tx: tx.all(count))
        with pytest.raises(NotAdmitted):
            await runtime.ask("k", "/pair 1", source=web)
        with pytest.raises(RateLimited):
            await runtime.ask("k", "hello", source=web)
        assert await inspect(runtime).store.browse(lambda tx: tx.all(count)) == rows


async def test_a_command_that_needs_a_higher_role_is_refused_and_not_stored(chat):
    async with chat() as here:
        assert await here.refused(ALICE, "/pair ABCD-EFGH") == (
            "/pair is not available to a user. See /help for what you can do."
        )
        [text] = await here.sent(1)
        assert text == "/pair is not available to a user. See /help for what you can do."
        assert await here.count("wrong_codes") == 0


@pytest.mark.parametrize("wrapped", ["/queue /pair {}", "/steer /pair {}", "/background /pair {}"])
async def test_a_command_inside_another_command_is_only_text(chat, wrapped):
    async with chat() as here:
        code = await here.code()
        await here.say(ALICE, "hello")
        await here.submit(ALICE, wrapped.format(code))
        await here.runtime.drain()
        assert await here.count("principals") == 0


@pytest.mark.parametrize("guests", [{"open": True}, {"chats": ["666"]}])
async def test_a_paired_user_keeps_its_role_on_an_open_platform(chat, guests):
    async with chat() as here:
        await here.pair()
    async with chat(access_for(**guests)) as here:
        assert ", user;" in await here.say(MALLORY, "/whoami")


async def test_a_guest_of_a_chat_is_admitted_in_that_chat_only(chat):
    here_too = user("666", chat_id="-5", chat_type="group")
    post = user(None, chat_id="-5", chat_type="channel")
    async with chat(access_for(chats=["-5"])) as here:
        assert await here.say(here_too, "hello") == "echo: hello"
        assert await here.say(post, "news") == "echo: news"
        assert (await here.refused(here_too, "/approve 1")).startswith(
            "/approve is not available to a guest"
        )
        assert await here.refused(MALLORY) == ENGLISH.unknown_sender
        assert await here.refused(user("666", chat_id="-6", chat_type="group"))


# Rate limits


async def test_a_flood_affects_no_other_user_and_makes_few_store_requests(chat, mock_clock):
    access = access_for(users=["1", "2"], rates=RateLimit(per_minute=6, burst=20))
    async with chat(access, config=Config(when_busy="reject")) as here:
        await here.say(BOB, "hello")
        before = here.store.statistics().requests
        assert await here.flood(ALICE, 10_000) == 20
        cost = here.store.statistics().requests - before
        assert cost < 20 * 10
        assert await here.flood(BOB, 19) == 19  # all that it has left
        texts = [row.body["text"] for row in here.adapter.sent]
        assert texts.count(ENGLISH.too_fast) == 1
        mock_clock.jump(10)
        assert await here.flood(ALICE, 5) == 1
        mock_clock.jump(50)
        assert await here.flood(ALICE, 10) == 5
        await inspect(here.runtime).wait_sent()
        texts = [row.body["text"] for row in here.adapter.sent]
        assert texts.count(ENGLISH.too_fast) == 2


async def test_a_flood_of_an_unknown_sender_makes_few_store_requests(chat, mock_clock):
    access = access_for(rates=RateLimit(per_minute=6, burst=20))
    async with chat(access) as here:
        before = here.store.statistics().requests
        assert await here.flood(MALLORY, 10_000) == 0
        assert here.store.statistics().requests - before < 30
        mock_clock.jump(61)
        assert await here.flood(MALLORY, 100) == 0
        await inspect(here.runtime).wait_sent()
        assert len(here.adapter.sent) == 1
        assert CODE.search(here.adapter.texts[0])


async def test_stop_works_for_a_user_over_the_rate_limit(chat, mock_clock):
    access = access_for(users=["1"], rates=RateLimit(per_minute=6, burst=2))
    agent = ScriptedAgent([forever()])
    async with chat(access, build_agent=lambda _: agent) as here:
        await here.submit(ALICE, "work")
        assert await here.flood(ALICE, 100) == 1
        assert await here.say(ALICE, "/stop") == "Stopped. 1 queued message was cancelled."
        assert await here.flood(ALICE, 100, "/stop") == 1  # it has a separate bucket


async def test_accounts_and_anonymous_chats_have_separate_limits(chat, mock_clock):
    access = access_for(users=["1"], chats=["-5", "-6"], rates=RateLimit(per_minute=6, burst=3))
    async with chat(access) as here:
        group = user("1", chat_id="-5", chat_type="group")
        assert await here.flood(ALICE, 2) + await here.flood(group, 5) == 3  # one principal
        assert await here.flood(replace(ALICE, account="bot2"), 5) == 3
        for chat_id in ("-5", "-6"):
            assert await here.flood(user(None, chat_id=chat_id, chat_type="channel"), 5) == 3


async def test_the_console_has_no_rate_limit(chat, mock_clock):
    access = AccessPolicy(rates=RateLimit(per_minute=1, burst=1))
    async with chat(access) as here:
        for n in range(20):
            assert await here.say(CONSOLE, f"{n}") == f"echo: {n}"


async def test_a_background_task_does_not_count_against_the_rate_limit(chat, mock_clock):
    access = access_for(users=["1"], rates=RateLimit(per_minute=1, burst=1))
    async with chat(access) as here:
        await here.submit(ALICE, "/background work")
        await here.adapter.wait_sent(2)
        assert sorted(here.adapter.texts) == [
            "It is running in the background.",
            "echo: work",
        ]
