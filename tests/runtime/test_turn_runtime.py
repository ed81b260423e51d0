"""`Turn.runtime`: what agents and tools may do with the runtime during a turn."""

from __future__ import annotations

import asyncio

import pytest
import trio

from hermes import (
    AccessPolicy,
    Config,
    HermesError,
    NotAdmitted,
    PlatformRules,
    Source,
    Texts,
    Turn,
    TurnClosed,
    WaitCircle,
)
from hermes.agents import asyncio_agent, blocking_agent
from hermes.agents.tools import Toolbox, tool
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.messages import ToolCall
from tests.support.runtime import SECONDS, with_threads

TEXTS = Texts(stopped="Angehalten.")


async def look(turn):
    """Use every verb of the turn's own conversation, and return what they say."""
    own = turn.runtime.conversation
    await own.set_title("Herons")
    found = {hit.session_id for hit in await own.search("heron")}
    sessions = [each.session.id for each in await own.sessions()]
    status = await own.status()
    return {
        "key": own.session_key,
        "title": (await own.title()).text,
        "rows": [len(await own.history()), len(await own.history(limit=1))],
        "found": found == {turn.session_id},
        "sessions": sessions == [turn.session_id],
        "busy": status.busy,
        "text": turn.runtime.texts.stopped,
    }


def look_in_thread(turn):
    own = turn.runtime.conversation
    own.set_title("Herons")
    found = {hit.session_id for hit in own.search("heron")}
    sessions = [each.session.id for each in own.sessions()]
    status = own.status()
    return {
        "key": own.session_key,
        "title": own.title().text,
        "rows": [len(own.history()), len(own.history(limit=1))],
        "found": found == {turn.session_id},
        "sessions": sessions == [turn.session_id],
        "busy": status.busy,
        "text": turn.runtime.texts.stopped,
    }


SEEN = {
    "key": "k",
    "title": "Herons",
    "rows": [2, 1],
    "found": True,
    "sessions": True,
    "busy": True,
    "text": "Angehalten.",
}


def looking(see=look):
    """An agent function that looks at its conversation in the second turn."""
    seen = []

    async def reply(turn):
        if turn.history:
            seen.append(await see(turn))
        return "a heron"

    return reply, seen


@with_threads
async def test_a_turn_sees_its_own_conversation(start):
    reply, seen = looking()
    async with start(agent=reply, texts=TEXTS) as runtime:
        for _ in range(2):
            assert (await runtime.ask("k", "heron")).status == "complete"
        assert (await runtime.conversation("k").title()).text == "Herons"
    assert seen == [SEEN]


async def test_a_turn_on_asyncio_sees_its_own_conversation(start):
    reply, seen = looking()
    async with start(build_agent=asyncio_agent(reply), texts=TEXTS) as runtime:
        for _ in range(2):
            assert (await runtime.ask("k", "heron")).status == "complete"
    assert seen == [SEEN]


async def test_a_turn_in_a_thread_sees_its_own_conversation(start):
    seen = []

    def reply(turn):
        if turn.history:
            seen.append(look_in_thread(turn))
        return "a heron"

    async with start(build_agent=blocking_agent(reply), texts=TEXTS) as runtime:
        for _ in range(2):
            assert (await runtime.ask("k", "heron")).status == "complete"
    assert seen == [SEEN]


def test_a_turn_of_an_asyncio_host_sees_its_own_conversation(path):
    reply, seen = looking()

    async def main():
        async with open_runtime_asyncio(path, agent=reply, texts=TEXTS) as runtime:
            for _ in range(2):
                await runtime.ask("k", "heron")

    asyncio.run(main())
    assert seen == [SEEN]


def test_a_turn_of_a_blocking_host_sees_its_own_conversation(path):
    reply, seen = looking()
    with start_runtime(path, agent=reply, texts=TEXTS) as runtime:
        for _ in range(2):
            runtime.ask("k", "heron")
    assert seen == [SEEN]


async def test_a_tool_reaches_the_runtime_through_its_turn(start):
    titles = []

    @tool
    async def rename(title: str, turn: Turn) -> str:
        """Rename the conversation."""
        await turn.runtime.conversation.set_title(title)
        titles.append((await turn.runtime.conversation.title()).text)
        return "done"

    async def reply(turn):
        call = ToolCall("c", "rename", '{"title": "Herons"}')
        return (await Toolbox([rename]).run(call, turn)).content

    async with start(agent=reply) as runtime:
        assert (await runtime.ask("k", "hello")).text == "done"
    assert titles == ["Herons"]


VERBS = {
    "new": lambda own: own.new(),
    "switch": lambda own: own.switch("x"),
    "branch": lambda own: own.branch(),
    "undo": lambda own: own.undo(),
    "compress": lambda own: own.compress(),
    "close": lambda own: own.close(),
    "ask": lambda own: own.ask("hello"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_that_would_wait_for_the_turn_is_refused(start, verb):
    async def reply(turn):
        with pytest.raises(WaitCircle, match="a turn cannot wait for its own conversation"):
            await VERBS[verb](turn.runtime.conversation)
        return "refused"

    async with start(agent=reply) as runtime:
        assert (await runtime.ask("k", "hello")).text == "refused"


def asking(*, caught=()):
    """An agent function that asks the conversation in the text of its turn."""

    async def reply(turn):
        if turn.text == "/whoami":  # a text, not a command
            return f"I am {turn.session_key}"
        try:
            return (await turn.runtime.ask(turn.text, "/whoami", timeout=30)).text
        except caught as error:
            return f"{type(error).__name__}: {error}"

    return reply


async def test_a_turn_may_not_ask_other_conversations_by_default(start):
    async with start(agent=asking(caught=HermesError)) as runtime:
        refused = (await runtime.ask("a", "b")).text
        assert refused.startswith("HermesError: agents may not ask other conversations")
        assert await runtime.conversation("b").history() == []
        own = (await runtime.ask("a", "a")).text
        assert own.startswith("WaitCircle: a turn cannot wait for its own conversation")


@pytest.mark.parametrize("make", [lambda reply: {"agent": reply}, lambda reply: {
    "build_agent": asyncio_agent(reply)}], ids=["Trio", "asyncio"])  # fmt: skip
async def test_a_turn_may_ask_other_conversations_if_the_host_allows_it(start, make):
    config = Config(agents_may_ask=True)
    async with start(**make(asking(caught=WaitCircle)), config=config) as runtime:
        with trio.fail_after(30):
            assert (await runtime.ask("a", "b")).text == "I am b"
            own = (await runtime.ask("a", "a")).text
        assert own.startswith("WaitCircle: a turn cannot wait for its own conversation")


@pytest.mark.parametrize("make", [lambda reply: {"agent": reply}, lambda reply: {
    "build_agent": asyncio_agent(reply)}], ids=["Trio", "asyncio"])  # fmt: skip
async def test_what_an_agent_may_ask_is_not_refused_by_the_access_policy(start, make):
    anna = Source(platform="telegram", chat_id="1", user_id="1")
    stranger = Source(platform="telegram", chat_id="2", user_id="2")

    async def reply(turn):
        if turn.session_key == "b":
            return f"from {turn.source.platform}"
        inner = (await turn.runtime.ask("b", "hello")).text
        sent = (await turn.runtime.ask("b", "hello", source=anna)).text
        with pytest.raises(NotAdmitted):
            await turn.runtime.ask("b", "hello", source=stranger)
        return f"{inner}, {sent}"

    access = AccessPolicy(rules={"telegram": PlatformRules(users=["1"])})
    config = Config(agents_may_ask=True)
    async with start(**make(reply), config=config, access=access) as runtime:
        assert (await runtime.ask("a", "go", source=anna)).text == "from embedded, from telegram"
        with pytest.raises(NotAdmitted):
            await runtime.ask("b", "hello")
    async with start(**make(asking(caught=HermesError)), access=access) as runtime:
        refused = (await runtime.ask("a", "b", source=anna)).text
        assert refused.startswith("HermesError: agents may not ask other conversations")


async def test_a_turn_in_a_thread_may_ask_other_conversations_if_the_host_allows_it(start):
    def reply(turn):
        if turn.text == "hello":
            return f"I am {turn.session_key}"
        return turn.runtime.ask(turn.text, "hello").text

    config = Config(agents_may_ask=True)
    async with start(build_agent=blocking_agent(reply), config=config) as runtime:
        assert (await runtime.ask("a", "b")).text == "I am b"


async def test_the_runtime_of_a_turn_is_closed_with_the_turn_and_has_no_operator_verbs(start):
    turns = []

    async def reply(turn):
        turns.append(turn)
        with pytest.raises(AttributeError):
            _ = turn.runtime.admin
        return "done"

    async with start(agent=reply) as runtime:
        assert (await runtime.ask("k", "hello")).text == "done"
        with pytest.raises(TurnClosed):
            _ = turns[0].runtime


def test_many_agents_of_an_asyncio_host_may_wait_for_each_other(path):
    """More than the threads of asyncio's pool: the calls must not need one each."""

    async def agent(turn):
        if turn.session_key.startswith("inner"):
            return f"{(await turn.runtime.conversation.title()).text}"
        other = turn.session_key.replace("outer", "inner")
        return (await turn.runtime.ask(other, "hello")).text

    async def main():
        config = Config(agents_may_ask=True)
        async with open_runtime_asyncio(path, agent=agent, config=config) as runtime:
            asked = [runtime.ask(f"outer {number}", "hello") for number in range(50)]
            replies = await asyncio.wait_for(asyncio.gather(*asked), SECONDS)
            assert {reply.text for reply in replies} == {"None"}

    asyncio.run(main())


def test_an_agent_of_an_asyncio_host_that_gives_up_waiting_waits_no_longer(path):
    gave_up, heard = asyncio.Event(), []

    async def agent(turn):
        if turn.session_key == "inner":
            await gave_up.wait()
            if turn.text == "hello":
                heard.append((await turn.runtime.ask("outer", "back")).text)
            return "done"
        if turn.text == "back":
            return "no circle"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turn.runtime.ask("inner", "hello"), 0.05)
        gave_up.set()
        return "gave up"

    async def main():
        config = Config(agents_may_ask=True)
        async with open_runtime_asyncio(path, agent=agent, config=config) as runtime:
            async with asyncio.timeout(SECONDS):
                await runtime.ask("outer", "hello")
                await runtime.ask("inner", "are you done?")

    asyncio.run(main())
    assert heard == ["no circle"]
