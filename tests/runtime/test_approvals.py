"""`/approve` in a real runtime: which call it is about, and that this very call runs."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest
import trio

from hermes import Config, Inbound, Source, ToolCall
from hermes.adapters.telegram.markdown import Fenced, parse
from hermes.agents import Endpoint, Secret, chat_agents
from hermes.agents.tools.toolbox import Toolbox, tool
from hermes.errors import Unsendable
from hermes.events import ApprovalAsked, ToolFinished, ToolStarted, TurnEnded
from hermes.messages import TurnResult
from hermes.store import SessionStore
from hermes.testing import MemoryAdapter, ModelAnswer, inspect, open_model
from tests.support.jsonrpc_client import connected
from tests.support.processes import foreign
from tests.support.runtime import SECONDS

CHAT = Source("memory", chat_id="c")
QUESTION = (
    'May `run` run with this?\n```\n{"command":"rm"}\n```\n'
    "Reply /approve 1 to allow it once, /approve always 1 for this tool here, or /deny 1."
)


@pytest.fixture
def start(start):
    """Open a runtime, with a time limit."""

    @asynccontextmanager
    async def opened(**options):
        with trio.fail_after(SECONDS):
            async with start(**options) as runtime:
                yield runtime

    return opened


class Shell:
    """An agent that obeys: it asks for each command of its input, one per line, and may wait."""

    def __init__(self):
        self.ran = []
        self.asked = trio.Event()
        self.go_on = trio.Event()

        @tool(approval=True)
        def run(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self.toolbox = Toolbox([run])

    async def run(self, turn):
        results = [
            (await self.toolbox.run(call, turn)).content
            for call in await self.toolbox.approved_calls(turn)
        ]
        for line in () if turn.decided_calls else turn.text.splitlines():
            if line == "wait":
                self.asked.set()
                await self.go_on.wait()
            else:
                arguments = json.dumps({"command": line})
                results.append(
                    (await self.toolbox.run(ToolCall("c", "run", arguments), turn)).content
                )
        return TurnResult(text="\n".join(results))

    @property
    def build(self):
        return lambda _: self


class Platform(MemoryAdapter):
    """A platform that may not be ready, or slow to answer."""

    def __init__(self):
        super().__init__("memory")
        self.is_ready = trio.Event()
        self.is_ready.set()
        self.arriving = trio.Event()
        self.held = False

    async def ready(self, row):
        await self.is_ready.wait()

    async def send(self, row):
        self.arriving.set()
        if self.held:
            await trio.sleep_forever()
        await super().send(row)


async def submit(runtime, text, event):
    command = text.startswith("/")
    await runtime.submit(Inbound("k", event, text, CHAT, command=command))


async def say(runtime, text):
    return (await runtime.ask("k", text, source=CHAT)).text


async def replies(events, number):
    """The next replies of the conversation."""
    texts = []
    async for envelope in events:
        if isinstance(envelope.event, TurnEnded):
            texts.append(envelope.event.reply.text)
        if len(texts) == number:
            break
    return texts


@pytest.fixture(params=["adapter", "host"])
def platform(request):
    return Platform() if request.param == "adapter" else None


async def shown(platform, number):
    if platform is not None:
        await platform.wait_sent(number)


def adapters(platform):
    return [] if platform is None else [platform]


# Which call is meant


async def test_a_call_that_is_asked_for_after_the_command_is_not_approved(start, platform):
    shell = Shell()
    async with start(build_agent=shell.build, adapters=adapters(platform)) as runtime:
        await say(runtime, "ls")
        await shown(platform, 2)
        await submit(runtime, "wait\nrm -rf ~", "hostile")
        await shell.asked.wait()
        await submit(runtime, "/approve", "the command")
        shell.go_on.set()
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]


async def test_a_call_that_is_asked_for_but_not_sent_is_not_approved(start):
    shell, platform = Shell(), Platform()
    async with start(
        build_agent=shell.build, adapters=[platform], config=Config(drain_timeout=0)
    ) as runtime:
        platform.is_ready = trio.Event()
        await say(runtime, "rm")
        for command in ("/approve", "/deny"):
            told = await say(runtime, command)
            assert told == (
                "Not decided, as it was not shown before. Reply /approve show and the number:\n"
                '```\n1: run {"command":"rm"}\n```'
            )
            assert await say(runtime, f"{command} 1") == told
        platform.is_ready.set()
        await platform.wait_sent(6)
        assert (await say(runtime, "/approve 1")).startswith("Approved: `run` with")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_an_answer_is_not_refused_because_the_question_is_still_being_sent(start):
    shell, platform = Shell(), Platform()
    platform.held = True
    async with start(
        build_agent=shell.build, adapters=[platform], config=Config(drain_timeout=0)
    ) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, runtime, "ls\nwait")
            await platform.arriving.wait()
            await submit(runtime, "/approve", "fast")
            await shell.asked.wait()
            shell.go_on.set()
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]


async def test_a_host_that_has_received_the_event_may_answer_at_once(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        async with runtime.stream("k", "ls\nwait") as stream:
            async for event in stream:
                if isinstance(event, ApprovalAsked):
                    await runtime.submit(Inbound("k", "fast", "/approve", command=True))
                    shell.go_on.set()
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]


@pytest.mark.parametrize("observed", [{}, {"session_key": "k", "deltas": False}])
async def test_a_host_without_events_is_shown_a_call_by_the_reply(start, observed):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        with runtime.subscribe(**observed) as log:  # an observer shows nothing to the user
            receipt = await runtime.submit(Inbound("k", "e", "rm\nwait"))
            await shell.asked.wait()
            log.take_ready()
            await runtime.submit(Inbound("k", "blind", "/approve", command=True))
            shell.go_on.set()
            await inspect(runtime).wait_idle("k")
            await runtime.submit(Inbound("k", "also blind", "/approve 1", command=True))
            await inspect(runtime).wait_idle("k")
            assert shell.ran == []
            assert QUESTION in (await runtime.wait(receipt)).text
            await runtime.ask("k", "/approve")
            await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


@pytest.mark.parametrize("verb", ["ask", "wait", "reply_of", "stream", "subscribe", "follow"])
async def test_what_a_host_receives_shows_the_call(start, verb):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        first = Inbound("k", "e", "rm", per_conversation=True)
        if verb == "ask":
            reply = await runtime.ask("k", "rm")
        elif verb == "stream":
            async with runtime.stream("k", "rm") as stream:
                *_, last = [event async for event in stream]
                reply = last.reply
        elif verb in {"subscribe", "follow"}:
            subscribe = runtime.subscribe if verb == "subscribe" else runtime.follow
            with subscribe("k") as events:
                await runtime.submit(first)
                async for envelope in events:
                    if isinstance(envelope.event, TurnEnded):
                        reply = envelope.event.reply
                        break
        else:
            receipt = await runtime.submit(first)
            await inspect(runtime).wait_idle("k")
            wait = runtime.wait(receipt) if verb == "wait" else runtime.reply_of("k", "e")
            reply = await wait
        assert reply.text.startswith(QUESTION)
        assert [call.arguments for call in reply.approvals] == ['{"command":"rm"}']
        await runtime.ask("k", "/approve")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_an_event_that_was_published_but_not_read_shows_nothing(start):
    """It is read only after the command was accepted, by a stream, too."""
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        with runtime.subscribe("k") as events:
            async with runtime.stream("k", "rm\nwait") as stream:
                await shell.asked.wait()
                await runtime.submit(Inbound("k", "blind", "/approve", command=True))
                assert any(isinstance(each.event, ApprovalAsked) for each in events.take_ready())
                assert any(isinstance(event, ApprovalAsked) for event in stream.take_ready())
                shell.go_on.set()
                assert (await anext(stream)).reply.approvals
            await inspect(runtime).wait_idle("k")
        assert shell.ran == []
        await runtime.ask("k", "/approve")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_an_event_of_another_message_is_not_shown_by_a_stream(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await runtime.submit(Inbound("k", "e", "wait\nrm"))
        await shell.asked.wait()
        async with runtime.stream("k", "/status") as stream:
            shell.go_on.set()
            async for _ in stream:
                pass
        await inspect(runtime).wait_idle("k")
        assert (await runtime.ask("k", "/approve")).text.startswith("Not decided")
    assert shell.ran == []


@pytest.mark.parametrize("deltas", [True, False])
async def test_observers_beside_an_adapter_show_nothing_to_its_user(start, deltas):
    shell, platform = Shell(), Platform()
    platform.is_ready = trio.Event()
    async with start(
        build_agent=shell.build, adapters=[platform], config=Config(drain_timeout=0)
    ) as runtime:
        with runtime.subscribe("k", deltas=deltas) as events:
            async with runtime.stream("k", "rm", source=CHAT) as stream:
                assert any([isinstance(event, ApprovalAsked) async for event in stream])
            assert any(isinstance(each.event, ApprovalAsked) for each in events.take_ready())
            assert QUESTION not in stream.reply.text
            assert (await say(runtime, "/approve")).startswith("Not decided")
    assert shell.ran == []


async def test_a_host_that_passes_on_all_events_says_what_it_has_shown(start):
    shell, asked = Shell(), []
    async with start(build_agent=shell.build) as runtime:

        def pass_on(envelope):
            if isinstance(envelope.event, ApprovalAsked):
                asked.append(envelope.event.approval)

        with runtime.subscribe(callback=pass_on):
            await runtime.submit(Inbound("k", "e", "rm"))
            await inspect(runtime).wait_idle("k")
            runtime.mark_shown(asked[0])
            runtime.mark_shown(asked[0], shown=False)
            assert (await runtime.ask("k", "/approve")).text.startswith("Not decided")
            runtime.mark_shown(asked[0])
            assert (await runtime.ask("k", "/approve")).text.startswith("Approved")
            await inspect(runtime).wait_idle("k")
        with pytest.raises(TypeError, match="approval"):
            runtime.mark_shown(1)
    assert shell.ran == ["rm"]


async def test_what_was_shown_is_known_after_a_restart(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await runtime.ask("k", "rm")
    async with start(build_agent=shell.build) as runtime:
        await runtime.ask("k", "/approve")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_a_command_of_another_process_approves_no_call_that_is_shown_after_it(start, path):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        receipt = await runtime.submit(Inbound("k", "e", "rm\nwait"))
        await shell.asked.wait()
        with SessionStore(path) as store:
            store.accept(Inbound("k", "blind", "/approve", command=True))
        shell.go_on.set()
        assert QUESTION in (await runtime.wait(receipt)).text
        await runtime.ask("k", "wait")  # finds the command of the other process
        blind = await runtime.reply_of("k", "blind")
        assert blind.text.startswith("Not decided")
        await runtime.ask("k", "/approve")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_an_agent_that_asks_another_one_shows_its_user_nothing(start):
    shell = Shell()

    class Relay:
        async def run(self, turn):
            return TurnResult(text=(await turn.runtime.ask("k", turn.text)).text)

    def build(spec):
        return Relay() if spec.session_key == "relay" else shell

    async with start(build_agent=build, config=Config(agents_may_ask=True)) as runtime:
        assert QUESTION in (await runtime.ask("relay", "rm")).text
        assert (await runtime.ask("k", "/approve")).text.startswith("Not decided")
        assert QUESTION in (await runtime.ask("k", "/approve show 1")).text
        await runtime.ask("k", "/approve")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


async def test_a_call_that_expires_while_the_command_waits_leaves_no_other_one_approved(
    start, world
):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await runtime.ask("k", "ls")
        world.pass_time(1800)
        await runtime.ask("k", "rm")
        await runtime.submit(Inbound("k", "w", "wait"))
        await shell.asked.wait()
        receipt = await runtime.submit(Inbound("k", "c", "/approve", command=True))
        world.pass_time(1801)
        shell.go_on.set()
        told = (await runtime.wait(receipt)).text
        await inspect(runtime).wait_idle("k")
    assert told.startswith("Several calls wait.")
    assert shell.ran == []


async def test_of_several_calls_one_must_be_named(start, platform):
    shell = Shell()
    async with start(build_agent=shell.build, adapters=adapters(platform)) as runtime:
        await say(runtime, "ls\nrm")
        await shown(platform, 3)
        for command in ("approve", "deny"):
            assert await say(runtime, f"/{command}") == (
                f"Several calls wait. Reply /{command} and the number of one of them:\n"
                '```\n1: run {"command":"ls"}\n2: run {"command":"rm"}\n```'
            )
        assert (await say(runtime, "/approve 1")).startswith("Approved: `run` with")
        await inspect(runtime).wait_idle("k")
        assert (await say(runtime, "/deny")).startswith("Denied: `run` with")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]


async def test_a_command_that_is_repeated_approves_no_other_call(start, platform):
    """When it was sent again, two calls were open; when it is worked on, only the other one is."""
    shell = Shell()
    async with start(build_agent=shell.build, adapters=adapters(platform)) as runtime:
        await say(runtime, "ls")
        await shown(platform, 2)
        async with runtime.stream("k", "rm\nwait", source=CHAT) as stream:
            await shell.asked.wait()
            await shown(platform, 3)
            stream.take_ready()
            for event in ("first", "again"):
                await submit(runtime, "/approve 1" if event == "first" else "/approve", event)
            await submit(runtime, "/approve 1", "first")  # the platform delivers it once more
            with runtime.subscribe("k") as events:
                shell.go_on.set()
                async for _ in stream:
                    pass
                said = await replies(events, 4)
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]
    assert '2: run {"command":"rm"}' in said[2]
    assert '1: run {"command":"ls"}' not in said[2]


async def test_a_second_command_reports_what_the_first_has_decided(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await say(runtime, "ls")
        async with runtime.stream("k", "wait") as stream:
            await shell.asked.wait()
            for event in ("first", "again"):
                await runtime.submit(Inbound("k", event, "/approve", command=True))
            with runtime.subscribe("k") as events:
                shell.go_on.set()
                async for _ in stream:
                    pass
                said = await replies(events, 4)
    assert said[1].startswith("Approved: `run`")
    assert said[2] in {"You have already approved call 1.", "Call 1 was approved and has run."}
    assert shell.ran == ["ls"]


async def test_a_call_whose_question_could_not_be_sent_can_be_shown_and_approved(start):
    shell, platform = Shell(), Platform()
    platform.errors = [Unsendable("the chat is gone, for now")]
    async with start(build_agent=shell.build, adapters=[platform]) as runtime:
        await say(runtime, "ls")
        await inspect(runtime).wait_sent()
        assert platform.sent == []
        assert (await say(runtime, "/approve 1")).startswith("Not decided")
        told = await say(runtime, "/approve show 1")
        assert '```\n{"command":"ls"}\n```' in told
        await platform.wait_sent(2)
        assert (await say(runtime, "/approve 1")).startswith("Approved: `run` with")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls"]


async def test_a_short_call_is_shown_by_any_page(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await runtime.submit(Inbound("k", "e", "rm"))
        await inspect(runtime).wait_idle("k")
        assert (await say(runtime, "/approve show 1 2")) == QUESTION
        assert (await say(runtime, "/approve")).startswith("Approved: `run` with")
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["rm"]


@pytest.mark.parametrize("text", ["Sure:\n```", "Sure:\n~~~\nls", "<!-- ", "- x\n\n  ```", "\\"])
async def test_the_text_of_an_agent_does_not_change_how_a_host_shows_a_call(start, text):
    class Agent(Shell):
        async def run(self, turn):
            await super().run(turn)
            return TurnResult(text=text)

    command = "rm a*.log b* [docs](https://evil.example)"
    async with start(build_agent=lambda _: Agent()) as runtime:
        reply = await runtime.ask("k", command)
    assert text in reply.text
    blocks = [each.text for each in parse(reply.text) if isinstance(each, Fenced)]
    assert json.loads(blocks[0]) == {"command": command}


async def test_all_of_a_long_call_can_be_seen_page_by_page(start):
    shell, long = Shell(), "echo " + "x" * 4000
    platform = Platform()
    async with start(build_agent=shell.build, adapters=[platform]) as runtime:
        await say(runtime, long)
        await platform.wait_sent(2)
        assert "\nPage 1 of 3: /approve show 1 PAGE. SHA-256: " in platform.texts[0]
        pages = [await say(runtime, f"/approve show 1 {n}") for n in (1, 2, 3)]
        assert (await say(runtime, "/approve show 9")) == "There is no pending call 9 here."
        assert (await say(runtime, "/deny show 1")).startswith("Usage: /deny")
    assert "".join(page.split("```\n")[1].removesuffix("\n") for page in pages) == json.dumps(
        {"command": long}, separators=(",", ":")
    )


async def test_a_client_is_shown_calls_by_an_event_and_may_answer_at_once(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="ls \u202e\nwait")
        asked = await client.event("approval.request")
        assert asked["arguments"] == r'{"command":"ls \u202e"}'
        await client.call("prompt.submit", session_id=handle, text="/approve")
        shell.go_on.set()
        for _ in range(3):
            await client.event("message.complete")
    assert shell.ran == ["ls \u202e"]


@pytest.mark.parametrize("limit", [300, 1000])
async def test_a_question_is_one_message_however_short_messages_are(start, limit):
    shell, platform = Shell(), MemoryAdapter("memory", limit=limit)
    long = "echo " + "`" * 500 + "word " * 300 + "; rm -rf ~"
    async with start(build_agent=shell.build, adapters=[platform]) as runtime:
        await say(runtime, long)
        await inspect(runtime).wait_sent()
        question, *answer = platform.texts
        pages = int(question.partition("Page 1 of ")[2].partition(":")[0])
        for number in range(2, pages + 1):
            await say(runtime, f"/approve show 1 {number}")
        await inspect(runtime).wait_sent()
        shown = [question, *platform.texts[1 + len(answer) :]]
        assert len(shown) == pages
        await say(runtime, "/approve")
        await inspect(runtime).wait_idle("k")
    blocks = [text.split("```\n")[1].removesuffix("\n") for text in shown]
    assert json.loads("".join(blocks)) == {"command": long}
    assert shell.ran == [long]


async def test_a_call_that_does_not_fit_into_the_messages_of_a_platform_is_not_asked_for(start):
    shell, platform = Shell(), MemoryAdapter("memory", limit=160)
    async with start(build_agent=shell.build, adapters=[platform]) as runtime:
        told = await say(runtime, "x" * 100)
        assert told == (
            "run was not run: its arguments are too long to be shown to the user for approval."
        )
        assert await say(runtime, "/approve") == "There is no tool call to decide about."


async def test_an_approved_decimal_is_the_one_that_was_shown(start):
    paid = []

    @tool(approval=True)
    def pay(amount: Decimal) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    toolbox = Toolbox([pay])

    class Agent:
        async def run(self, turn):
            amounts = turn.text.split() if not turn.decided_calls else []
            asked = [ToolCall("c", "pay", f'{{"amount":{amount}}}') for amount in amounts]
            for call in [*await toolbox.approved_calls(turn), *asked]:
                await toolbox.run(call, turn)
            return TurnResult(text="done")

    async with start(build_agent=lambda _: Agent()) as runtime:
        asked = await runtime.ask("k", "12345678901234567000.0 12345678901234567890.99")
        assert [call.arguments for call in asked.approvals] == [
            '{"amount":12345678901234567000.0}',
            '{"amount":12345678901234567890.99}',
        ]
        await runtime.ask("k", "/approve 2")
        await inspect(runtime).wait_idle("k")
    assert paid == [Decimal("12345678901234567890.99")]


async def disconnected(client):
    await client.source.aclose()
    await client.sink.aclose()


async def test_a_client_that_is_gone_is_shown_nothing(start):
    """Beside it there are other clients, whose conversations have nothing to do with it."""
    shell, key = Shell(), "agent:main:rpc:dm:x"
    async with start(build_agent=shell.build) as runtime, connected(runtime) as other:
        await other.call("session.create", conversation="y")
        async with connected(runtime) as client:
            handle = (await client.call("session.create", conversation="x"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="wait\nrm")
            await shell.asked.wait()
            await disconnected(client)
            shell.go_on.set()
            with runtime.subscribe(key) as events:  # not the user either
                await inspect(runtime).wait_idle(key)
                events.take_ready()
        async with connected(runtime) as client:
            handle = (await client.call("session.create", conversation="x"))["session_id"]
            for text, answer in (
                ("/approve", "Not decided"),
                ("/approve show 1", "May `run` run"),
                ("/approve", "Approved"),
            ):
                sent = await client.call("prompt.submit", session_id=handle, text=text)
                done = await client.answer_to(sent["message_id"])
                assert done["text"].startswith(answer)
            await inspect(runtime).wait_idle(key)
        assert other.events() == []
    assert shell.ran == ["rm"]


async def test_a_reply_that_is_sent_again_shows_a_client_no_call(start):
    """The reply has the text of the turn, which need not name the call."""
    shell, key = Shell(), "agent:main:rpc:dm:x"
    prompt = {"text": "wait\nrm", "event_id": "1"}
    async with start(build_agent=shell.build) as runtime:
        async with connected(runtime) as client:
            handle = (await client.call("session.create", conversation="x"))["session_id"]
            await client.call("prompt.submit", session_id=handle, **prompt)
            await shell.asked.wait()
            await disconnected(client)
            shell.go_on.set()
        await inspect(runtime).wait_idle(key)
        async with connected(runtime) as client:
            handle = (await client.call("session.create", conversation="x"))["session_id"]
            again = await client.call("prompt.submit", session_id=handle, **prompt)
            assert again["status"] == "answered"
            assert "run with this?" not in again["reply"]["text"]
            sent = await client.call("prompt.submit", session_id=handle, text="/approve")
            told = (await client.answer_to(sent["message_id"]))["text"]
            assert told.startswith("Not decided")
            await inspect(runtime).wait_idle(key)
    assert shell.ran == []


async def test_the_end_of_a_turn_shows_no_call_to_a_client_that_came_too_late(start):
    shell, key = Shell(), "agent:main:rpc:dm:x"
    client_chat = Source("rpc", chat_id="x", user_id="operator")
    async with start(build_agent=shell.build) as runtime, connected(runtime) as client:
        await runtime.submit(Inbound(key, "e", "rm\nwait", client_chat))
        await shell.asked.wait()
        handle = (await client.call("session.create", conversation="x"))["session_id"]
        shell.go_on.set()
        assert "`run` wants" not in (await client.event("message.complete"))["text"]
        sent = await client.call("prompt.submit", session_id=handle, text="/approve")
        told = (await client.answer_to(sent["message_id"]))["text"]
        assert told.startswith("Not decided")
    assert shell.ran == []


async def test_a_client_is_shown_nothing_of_the_conversations_of_a_host(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime, connected(runtime) as client:
        await client.call("session.create")
        await runtime.submit(Inbound("k", "e", "rm\nwait"))
        await shell.asked.wait()
        await runtime.submit(Inbound("k", "blind", "/approve", command=True))
        shell.go_on.set()
        await inspect(runtime).wait_idle("k")
        await runtime.submit(Inbound("k", "also blind", "/approve", command=True))
        await inspect(runtime).wait_idle("k")
    assert shell.ran == []


# The call itself


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_an_approved_call_runs_without_the_model(start, protocol):
    shell = Shell()
    script = [
        ModelAnswer("I need", calls=[ToolCall("c1", "run", '{ "command": "ls" }')]),
        "Please approve.",
        "Here are your files.",
        "Good bye.",
    ]
    async with open_model(script) as model:
        url = model.openai_url if protocol == "openai" else model.anthropic_url
        endpoint = Endpoint(base_url=url, model="m", key=Secret("sk-test-0123456789abcdef"))
        tools = list(shell.toolbox._tools.values())
        async with (
            chat_agents(endpoint, protocol=protocol, tools=tools) as agents,
            start(build_agent=agents.build, agent_spec=agents.agent_spec, clock=None) as runtime,
        ):
            await runtime.ask("k", "list my files")
            with runtime.subscribe("k") as events:
                await runtime.ask("k", "/approve")
                seen = []
                async for envelope in events:
                    seen.append(envelope.event)
                    if isinstance(envelope.event, TurnEnded) and envelope.event.reply.text == (
                        "Here are your files."
                    ):
                        break
            assert shell.ran == ["ls"]
            rows = await runtime.conversation("k").history()
            assert (await runtime.ask("k", "thanks")).text == "Good bye."
    assert shell.ran == ["ls"]
    assert [type(event) for event in seen if isinstance(event, ToolStarted | ToolFinished)] == [
        ToolStarted,
        ToolFinished,
    ]
    assert [row.role for row in rows] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert rows[4].content.startswith("[The user has approved one call of run")
    [call] = rows[5].tool_calls
    assert (call.name, call.arguments) == ("run", '{"command":"ls"}')
    assert (rows[6].content, rows[6].tool_call_id) == ("ran ls", call.id)
    assert len(model.requests) == 4
    assert "ran ls" in json.dumps(model.requests[2].json["messages"][-1])


@pytest.mark.parametrize("ended", [True, False])
async def test_an_approved_call_of_a_turn_that_runs_again_is_not_repeated(start, path, ended):
    shell, reached = Shell(), trio.Event()

    class Dying(Shell):
        async def run(self, turn):
            if turn.decided_calls:
                [call] = await self.toolbox.approved_calls(turn)
                if ended:
                    await self.toolbox.run(call, turn)
                else:
                    await turn.records.begin_once(
                        turn.turn_id, call.name, call.arguments, approved_for="k"
                    )
                reached.set()
                await trio.sleep_forever()
            return await super().run(turn)

    dying = Dying()
    async with start(build_agent=dying.build, config=Config(drain_timeout=0)) as runtime:
        await runtime.ask("k", "ls")
        await runtime.ask("k", "/approve")
        await reached.wait()
    async with start(build_agent=shell.build) as runtime:
        await inspect(runtime).wait_recovered()
        await inspect(runtime).wait_idle("k")
        rows = await runtime.conversation("k").history()
    assert shell.ran == []
    assert rows[-1].content == (
        "ran ls"
        if ended
        else "This call of run was started before, and then the process ended. It is unknown "
        "whether it took effect; it is not run again."
    )
    assert foreign(path, "SELECT state FROM approvals") == [["used"]]


@pytest.mark.parametrize("command", ["/approve always", "/approve always 1"])
async def test_after_a_tool_is_no_longer_allowed_each_call_needs_an_approval(start, command):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await say(runtime, "rm")
        await say(runtime, command)
        await inspect(runtime).wait_idle("k")
        assert "ran rm" in await say(runtime, "rm")
        await say(runtime, "/deny always run")
        assert "May `run` run" in await say(runtime, "rm")
    assert shell.ran == ["rm", "rm"]


async def test_the_command_that_an_answer_names_revokes_a_permission(start):
    """Hosts and the console may show the backticks around the name of the tool."""
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await say(runtime, "rm")
        told = await say(runtime, "/approve always")
        await inspect(runtime).wait_idle("k")
        command = re.search(r"/deny always \S+", told)[0]
        assert command == "/deny always `run`"
        assert (await say(runtime, command)) == "run asks here again before each call."
        assert (await say(runtime, command)).startswith("Nothing has changed: run is not allowed")


async def test_two_calls_that_are_approved_together_both_run(start):
    shell = Shell()
    async with start(build_agent=shell.build) as runtime:
        await runtime.ask("k", "ls\npwd")
        async with runtime.stream("k", "wait") as stream:
            await shell.asked.wait()
            for number in (1, 2):
                command = Inbound("k", f"e{number}", f"/approve {number}", command=True)
                await runtime.submit(command)
            shell.go_on.set()
            async for _ in stream:
                pass
        await inspect(runtime).wait_idle("k")
    assert shell.ran == ["ls", "pwd"]
