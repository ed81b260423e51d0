"""The rendered stream of an answer: parsed once for all listeners, and joined at any time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import msgspec
import pytest
import trio

from hermes import open_runtime
from hermes.adapters.http.api.streams.channels import MAX_ENTRIES
from hermes.adapters.http.api.streams.hub import Hub
from hermes.adapters.http.api.streams.rendered.growing_turn import GrowingTurn
from hermes.adapters.http.api.streams.rendered.renderer import Renderer
from hermes.background import open_background
from hermes.events import AssistantMessage, ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Inbound, Message, ToolCall
from hermes.redaction import ValueRedactor
from hermes.testing import inline
from tests.support.event_clients import EventClient, blocks_of, parts_of, rendered_state

KEY = "agent:main:http:dm:ann:conv"


@attrs.define
class Direct:
    """Runs functions without threads, and counts them."""

    calls: int = 0
    seconds: float = 0.0

    async def __call__(self, function, *args, limiter):
        self.calls += 1
        async with limiter:
            if self.seconds:
                await trio.sleep(self.seconds)
            return function(*args)


@attrs.define
class Feed:
    """A turn that says what the test wants, and clients that read it."""

    runtime: object
    hub: object
    nursery: object
    run: Direct
    started: trio.Event = attrs.Factory(trio.Event)
    done: trio.Event = attrs.Factory(trio.Event)
    turn: object = None
    receipt: object = None
    text: str = ""

    async def agent(self, turn):
        self.turn = turn
        self.started.set()
        await self.done.wait()
        return self.text

    async def begin(self):
        self.receipt = await self.runtime.submit(Inbound(KEY, "e1", "hello"))
        await self.started.wait()

    async def join(self, client=None):
        client = client or EventClient(KEY, rendered=True)
        self.nursery.start_soon(client.listen, self.hub)
        await trio.sleep(0.02)
        return client

    def say(self, *texts):
        for text in texts:
            self.turn.emit(TextDelta(text))

    async def end(self, text):
        self.text = text
        self.done.set()
        await self.runtime.wait(self.receipt)


@pytest.fixture
def feed(path):
    @asynccontextmanager
    async def open_feed(seconds=0.0, **options):
        run, found = Direct(seconds=seconds), None

        async def agent(turn):
            return await found.agent(turn)

        async with (
            open_runtime(path, agent=agent, open_worker=inline(), **options) as runtime,
            open_background() as nursery,
        ):
            renderer = Renderer(run, turns=runtime.api.turns_of_rows)
            found = Feed(runtime, Hub(runtime, nursery, "p", renderer), nursery, run)
            yield found
            found.done.set()
            found.hub.close()

    return open_feed


def updates(client):
    return client.kinds.count("progress")


async def test_an_answer_is_sent_at_most_ten_times_a_second_and_once_for_all(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        clients = [await here.join() for _ in range(5)]
        before = here.run.calls
        for _ in range(300):  # three seconds
            here.say("word ")
            await trio.sleep(0.01)
        await trio.sleep(0.2)
        assert 25 <= here.run.calls - before <= 32
        for client in clients:
            assert 25 <= updates(client) <= 32
            assert client.model.parts[0]["nodes"] == blocks_of("word " * 300)


async def test_the_first_words_are_sent_at_once(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        client = await here.join()
        await trio.sleep(1)
        here.say("now")
        with trio.move_on_after(0.001) as early:
            while not updates(client):
                await trio.lowlevel.checkpoint()
        assert not early.cancelled_caught


async def test_a_text_that_is_hard_to_parse_is_parsed_less_often(feed, autojump_clock):
    async with feed(seconds=1.0) as here:
        await here.begin()
        client = await here.join()
        for _ in range(100):  # ten seconds
            here.say("word ")
            await trio.sleep(0.1)
        assert here.run.calls <= 3
        await trio.sleep(20)
        assert client.model.parts[0]["nodes"] == blocks_of("word " * 100)


async def test_a_listener_joins_in_the_middle(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        first = await here.join()
        text = "# Title\n\nOne *two* three.\n\n```python\nreturn 1\n```\n\n- a\n- b\n\nThe end"
        late = []
        for at in range(0, len(text), 5):
            here.say(text[at : at + 5])
            late.append(await here.join())
            await trio.sleep(0.03)
        await trio.sleep(1)
        for client in (first, *late):
            assert client.resets == 1
            assert client.model.comparable() == await rendered_state(here.runtime, KEY)
        await here.end(text)
        await trio.sleep(1)
        for client in (first, *late):
            assert client.model.comparable() == await rendered_state(here.runtime, KEY)
        [ended] = [row for row in first.model.state["history"] if row["role"] == "assistant"]
        assert "nodes" not in ended  # it is a part that the client knows


async def test_nothing_is_parsed_again_when_an_answer_is_stored(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        await here.join()
        here.say("*one*\n\ntwo")
        await trio.sleep(1)
        await here.end("*one*\n\ntwo")
        await trio.sleep(1)
        calls = here.run.calls
        await here.join()
        assert here.run.calls == calls


async def test_a_client_that_reads_slowly_gets_the_state(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        client = await here.join()
        client.stop_reading()
        for number in range(MAX_ENTRIES + 10):
            call = ToolCall(id=f"c{number}", name="look")
            here.turn.emit(ToolStarted(call))
        here.say("the *end*")
        await trio.sleep(2)
        client.go_on()
        await trio.sleep(2)
        assert client.resets == 2
        assert client.model.comparable() == await rendered_state(here.runtime, KEY)


@pytest.mark.parametrize("redact", [None, ValueRedactor(["hush-hush-7"])])
async def test_several_texts_of_a_turn_are_parts_of_their_own(feed, redact, autojump_clock):
    call = ToolCall(id="c", name="look", arguments="{}")
    message = Message(role="assistant", content="*a* b", tool_calls=[call])
    said = (
        ReasoningDelta("hm"), TextDelta("*a*"), TextDelta(" b"), AssistantMessage(message),
        ToolStarted(call), ToolFinished("c", "seen"), ReasoningDelta("so "), ReasoningDelta("then"),
        TextDelta("# c\n"), TextDelta("gone", restart=True), TextDelta("- d"), TextDelta("\n- e"),
    )  # fmt: skip
    async with feed(redact=redact) as here:
        await here.begin()
        early = await here.join()
        for event in said:
            here.turn.emit(event)
            await trio.sleep(0.15)
        late = await here.join()
        await trio.sleep(1)
        expected = parts_of(here.runtime.api.turn_events(KEY))
        assert [kind for kind, _ in expected] == ["reasoning", "tool", "reasoning", "text"]
        for client in (early, late):
            assert client.model.comparable() == await rendered_state(here.runtime, KEY)


async def test_listeners_get_the_state_again_after_events_were_lost(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        client = await here.join()
        here.say("# before\n\n")
        await trio.sleep(1)
        here.hub.conversation(KEY).restart()
        here.say("*after*")
        await trio.sleep(1)
        assert client.resets == 2
        assert client.model.comparable() == await rendered_state(here.runtime, KEY)
        await here.end("# before\n\n*after*")
        await trio.sleep(1)
        assert client.model.comparable() == await rendered_state(here.runtime, KEY)


async def test_channels_without_listeners_are_forgotten(feed, autojump_clock):
    async with feed() as here:
        await here.begin()
        client = await here.join()
        channel = here.hub.rendered(KEY)
        client.cut()
        await trio.sleep(30)
        assert here.hub.rendered(KEY) is channel
        await trio.sleep(40)
        assert here.hub.rendered(KEY) is not channel


@pytest.mark.parametrize(
    ("unit", "size", "times"),
    [
        ("word " * 60 + "*and* `more`.\n\n", 1_000_000, 3),
        ("a line of a paragraph that never ends\n", 200_000, 20),
        ("- " + "an item of a list that never ends " * 5 + "\n", 200_000, 20),
    ],
)
def test_the_work_for_an_answer_is_linear(unit, size, times):
    def work(size):
        turn = GrowingTurn(1, lambda _: False)
        text = unit * (size // len(unit))
        for at in range(0, len(text), 8000):
            turn.receive(TextDelta(text[at : at + 8000]))
            turn.advance(False)
        return turn.work / len(text)

    assert work(size) <= min(times, work(size // 2) * 1.2)


@pytest.mark.parametrize("unit", ["Some *words* here.\n\n", "words of one paragraph "])
def test_what_is_known_is_not_sent_again(unit):
    turn, sent, text = GrowingTurn(1, lambda _: False), 0, unit * 1000
    for at in range(0, len(text), 40):
        turn.receive(TextDelta(text[at : at + 50]))
        sent += len(msgspec.json.encode(turn.advance(False)))
    assert sent < 6 * len(text)
