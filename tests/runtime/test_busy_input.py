"""Input that comes while a turn runs: each message ends in a turn or in a visible refusal."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import wait_all_tasks_blocked

from hermes import AgentSpec, CompressionConfig, Config, Inbound, Message, Source, ToolCall
from hermes.actors.session.running_turn import rows_of
from hermes.errors import AlreadyAnswered, HermesError, Overloaded, StoreBusy, TurnClosed
from hermes.events import (
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import TurnResult
from hermes.store import inline, open_store
from hermes.testing import DeterministicCompressor, MemoryAdapter, ScriptedAgent, texts_of
from hermes.transcript.render import is_valid, render
from hermes.user_code import leaf

SECONDS = 30
inline_only = pytest.mark.parametrize("workers", ["inline"])


class Patient:
    """An agent that holds each turn until it is let go, then plays a step if the test gave one."""

    def __init__(self, **steps):
        self.turns = []
        self.steps = {int(name.removeprefix("turn")): step for name, step in steps.items()}
        self._begun = trio.Event()
        self._gates = {}

    def _gate(self, number):
        return self._gates.setdefault(number, trio.Event())

    async def run(self, turn):
        number = len(self.turns)
        self.turns.append(turn)
        self._begun.set()
        step = self.steps.get(number)
        if step is not None:
            said = await step(turn)
            return said if isinstance(said, TurnResult) else TurnResult(text=said)
        await self._gate(number).wait()
        return TurnResult(text=f"answer {number}")

    async def wait_begun(self, number=0):
        """Wait until this turn has begun."""
        while len(self.turns) <= number:
            self._begun = trio.Event()
            await self._begun.wait()
        return self.turns[number]

    def let_go(self, *numbers):
        for number in numbers or [len(self.turns) - 1]:
            self._gate(number).set()

    def inputs(self):
        return [[message.content for message in turn.input] for turn in self.turns]


class Asked:
    """A question on its way, and what became of it."""

    def __init__(self):
        self._done = trio.Event()
        self.reply = self.error = None

    async def run(self, ask):
        try:
            self.reply = await ask()
        except HermesError as error:
            self.error = error
        self._done.set()

    @property
    def done(self):
        return self._done.is_set()

    async def wait(self):
        await self._done.wait()
        if self.error is not None:
            raise self.error
        return self.reply


class Room:
    """A runtime, its agent, and people who talk without waiting for each other."""

    def __init__(self, runtime, agent, nursery):
        self.runtime, self.agent, self.nursery = runtime, agent, nursery
        self.store = runtime._context.store

    async def say(self, text, key="k", **options):
        """Ask in a task of its own; returns once the message is on disk and delivered."""
        before, asked = await self._accepted(), Asked()
        ask = functools.partial(self.runtime.ask, key, text, **options)
        self.nursery.start_soon(asked.run, ask)
        while await self._accepted() == before and not asked.done:
            pass
        await self.settle()
        return asked

    async def _accepted(self):
        return await self.store.snapshot(lambda tx: tx.one("SELECT count(*) FROM inbox")[0])

    async def settle(self):
        """Whatever was committed before this is delivered after it."""
        await self.store.transact(lambda tx: None)

    async def history(self, key="k"):
        return texts_of(await self.runtime.history(key))

    async def inbox(self):
        return await self.store.snapshot(
            lambda tx: tx.all("SELECT id, state, attempts FROM inbox ORDER BY id")
        )


@asynccontextmanager
async def room(start, agent=None, **options):
    agent = Patient() if agent is None else agent
    with trio.fail_after(SECONDS):
        async with (
            start(agent=lambda _: agent, **options) as runtime,
            trio.open_nursery() as nursery,
        ):
            yield Room(runtime, agent, nursery)


def held_first(gate):
    """A verb that waits for the gate when it is first called."""
    entered = trio.Event()

    async def verb(real, *args, **kwargs):
        answer = await real(*args, **kwargs)
        if not entered.is_set():
            entered.set()
            await gate.wait()
        return answer

    verb.entered = entered
    return verb


def calls(*ids):
    return [ToolStarted(ToolCall(id_, f"tool-{id_}")) for id_ in ids]


# Queue


async def test_all_that_waits_becomes_one_next_turn_in_inbox_order(start):
    """Trio shuffles tasks, so the order is that of the rows and of nothing else."""
    replies = []
    async with room(start) as here:

        async def tell(n):
            replies.append(await here.runtime.ask("k", f"text {n}", event_id=f"text {n}"))

        first = await here.say("first")
        await here.agent.wait_begun()
        for n in range(40):
            here.nursery.start_soon(tell, n)
        while len(await here.inbox()) < 41:
            pass
        await here.settle()
        order = await here.store.snapshot(
            lambda tx: tx.all("SELECT event_id FROM inbox WHERE id > 1 ORDER BY id")
        )
        here.agent.let_go(0)
        second = await here.agent.wait_begun(1)
        assert here.agent.inputs() == [["first"], [text for (text,) in order]]
        assert second.turn_id == 2
        here.agent.let_go(1)
        assert (await first.wait()).text == "answer 0"
    assert len(replies) == 40
    assert {(reply.text, reply.turn_id) for reply in replies} == {("answer 1", 2)}


async def test_a_second_turn_sees_the_first_in_its_history(start):
    async with room(start) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await here.say("two")
        await here.say("three")
        here.agent.let_go(0, 1)
        second = await here.agent.wait_begun(1)
        assert texts_of(second.history) == [("user", "one"), ("assistant", "answer 0")]
        assert second.text == "two\n\nthree"
    with_second = [*texts_of(second.history)]
    assert with_second[-3:] == [("user", "two"), ("user", "three"), ("assistant", "answer 1")]


@inline_only
async def test_more_than_a_mailbox_holds_is_answered_first_in_first_out(start):
    async with room(start) as here:
        agent = here.agent
        await here.say("0")
        await agent.wait_begun()
        for n in range(1, 81):  # the mailbox holds 64
            await here.runtime.submit(Inbound("k", f"e{n}", str(n)))
        agent.let_go(0)
        await agent.wait_begun(1)
        await here.runtime.submit(Inbound("k", "e81", "81"))
        agent.let_go(1, 2, 3, 4)
        await here.runtime.ask("k", "82")
    said = [int(text) for texts in agent.inputs() for text in texts]
    assert said == list(range(83))


async def test_what_waited_for_a_turn_counts_as_begun_when_its_own_turn_begins(start):
    """Otherwise a message that kills the process is tried once too often."""
    async with room(start) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await here.say("two")
        here.agent.let_go(0)
        await here.agent.wait_begun(1)
        assert await here.inbox() == [(1, "done", 1), (2, "open", 1)]
        here.agent.let_go(1)


async def test_too_many_waiting_messages_are_refused_before_they_are_acknowledged(start):
    async with room(start, config=Config(max_queued=3)) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await here.say("two")
        await here.say("three")
        with pytest.raises(Overloaded, match="3 messages already wait"):
            await here.runtime.ask("k", "four")
        assert len(await here.inbox()) == 3
        await here.say("elsewhere", key="other")
        here.agent.let_go(0, 1, 2)


# Interrupt


@inline_only
async def test_an_interrupt_takes_effect_within_a_scheduling_step(start):
    seen = []

    async def hold(turn):
        try:
            await trio.sleep_forever()
        finally:
            seen.append("cancelled")

    async with room(start, Patient(turn0=hold)) as here:
        asked = await here.say("one")
        await here.agent.wait_begun()
        await wait_all_tasks_blocked()
        assert await here.runtime.interrupt("k")
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert seen == ["cancelled"]
        assert (await asked.wait()).status == "interrupted"
        assert not await here.runtime.interrupt("k")
        assert not await here.runtime.interrupt("nobody")


async def test_what_an_interrupted_turn_had_said_is_kept_and_can_be_shown_to_a_model(start):
    async def work(turn):
        turn.emit(ReasoningDelta("hm"))
        turn.emit(TextDelta("I will "))
        turn.emit(TextDelta("look."))
        for event in (*calls("a", "b"), ToolFinished("b", "found")):
            turn.emit(event)
        await trio.sleep_forever()

    async with room(start, Patient(turn0=work)) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        second = await here.say("two", busy="interrupt")
        next_turn = await here.agent.wait_begun(1)
        assert (await first.wait()).status == "interrupted"
        rows = await here.runtime.history("k")
        assert texts_of(rows)[:2] == [("user", "one"), ("assistant", "I will look.")]
        assert rows[1].reasoning == "hm"
        results = {row.tool_call_id: row.content for row in rows if row.role == "tool"}
        assert results["b"] == "found"
        assert "interrupted" in results["a"]
        assert is_valid(render(rows)) is None
        assert [call.id for call in render(rows)[1].tool_calls] == ["a", "b"]
        assert is_valid(next_turn.messages()) is None
        here.agent.let_go(1)
        assert (await second.wait()).text == "answer 1"
    assert here.agent.inputs() == [["one"], ["two"]]


async def test_an_interrupted_turn_that_had_said_nothing_leaves_only_the_question(start):
    async with room(start) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        await here.runtime.interrupt("k")
        reply = await first.wait()
        assert (reply.text, reply.status) == ("", "interrupted")
        assert await here.history() == [("user", "one")]
        assert [state for _, state, _ in await here.inbox()] == ["done"]


async def test_whoever_interrupts_whom_every_message_is_answered_in_order(start):
    async with room(start, config=Config(busy="interrupt")) as here:
        asked = [await here.say("0")]
        for n in range(1, 6):
            await here.agent.wait_begun(n - 1)
            asked.append(await here.say(str(n)))
        await here.agent.wait_begun(5)
        here.agent.let_go(5)
        replies = [await each.wait() for each in asked]
        assert [reply.status for reply in replies] == [*["interrupted"] * 5, "complete"]
        assert here.agent.inputs() == [[str(n)] for n in range(6)]
        assert [text for role, text in await here.history() if role == "user"] == list("012345")


async def test_an_interrupt_leaves_other_conversations_alone(start):
    async with room(start) as here:
        mine = await here.say("mine", key="a")
        await here.agent.wait_begun(0)
        theirs = await here.say("theirs", key="b")
        await here.agent.wait_begun(1)
        await here.runtime.interrupt("a")
        assert (await mine.wait()).status == "interrupted"
        assert not theirs.done
        here.agent.let_go(1)
        assert (await theirs.wait()).status == "complete"


EVENTS = st.one_of(
    st.sampled_from("abc").map(TextDelta),
    st.just(ReasoningDelta("r")),
    st.sampled_from("1234").map(lambda id_: ToolStarted(ToolCall(id_, "t"))),
    st.sampled_from("1234").map(lambda id_: ToolFinished(id_, f"result {id_}")),
    st.sampled_from("xy").map(lambda text: Steered(Message("user", text))),
)


@given(st.lists(EVENTS, max_size=12), st.sampled_from([None, "the end"]))
def test_wherever_a_turn_is_cut_off_its_rows_can_be_shown_to_a_model(log, text):
    """Any agent, any order of events, any end."""
    rows = [Message("user", "asked"), *rows_of(log, text)]
    assert is_valid(render(rows)) is None
    steered = [event.message.content for event in log if isinstance(event, Steered)]
    assert [row.content for row in rows[1:] if row.role == "user"] == steered
    said = "".join(row.content or "" for row in rows if row.role == "assistant")
    if text is None:
        assert said == "".join(event.text for event in log if isinstance(event, TextDelta))
    else:
        assert said.endswith(text)


def test_a_result_that_comes_after_steered_input_is_kept():
    log = [*calls("a"), Steered(Message("user", "hurry")), ToolFinished("a", "found")]
    shown = render([Message("user", "asked"), *rows_of(log, "done")])
    assert is_valid(shown) is None
    assert [row.content for row in shown if row.role == "tool"] == ["found"]


@pytest.mark.parametrize("how", ["interrupt", "/stop"])
async def test_a_turn_that_is_being_prepared_can_be_stopped(start_proxy, path, how):
    """After a restart an actor first asks where its key leads: the message is in work already."""
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e1", "one"))
    gate = trio.Event()
    held = held_first(gate)
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, route_head=held) as runtime:
            await held.entered.wait()
            if how == "interrupt":
                assert await runtime.interrupt("k")
            else:
                await runtime.submit(Inbound("k", "e2", "/stop", command=True))
            gate.set()
            await runtime.ask("k", "two")
            said = [("user", "one"), ("user", "two"), ("assistant", "echo: two")]
            assert texts_of(await runtime.history("k")) == said


# Steer


async def test_steered_input_is_handed_over_where_the_agent_asks_and_recorded_in_its_place(start):
    gate = trio.Event()
    heard = []

    async def work(turn):
        turn.emit(TextDelta("Looking."))
        turn.emit(*calls("a"))
        turn.emit(ToolFinished("a", "found"))
        await gate.wait()
        heard.extend(turn.steered())
        heard.extend(turn.steered())
        turn.emit(TextDelta("As you wish."))
        return "As you wish."

    async with room(start, Patient(turn0=work)) as here:
        first = await here.say("one")
        turn = await here.agent.wait_begun()
        with here.runtime.events("k") as events:
            steered = await here.say("hurry", busy="steer")
            assert not steered.done
            gate.set()
            reply = await first.wait()
            assert await steered.wait() == reply
            event = await anext(events)
            assert isinstance(event.event, Steered)
            assert event.turn_id == turn.turn_id
        assert texts_of(heard) == [("user", "hurry")]
        assert await here.history() == [
            ("user", "one"),
            ("assistant", "Looking."),
            ("tool", "found"),
            ("user", "hurry"),
            ("assistant", "As you wish."),
        ]
        assert [state for _, state, _ in await here.inbox()] == ["done", "done"]
    assert len(here.agent.turns) == 1


async def test_steered_input_that_the_agent_never_asks_for_becomes_the_next_turn(start):
    async with room(start, config=Config(busy="steer")) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        second = await here.say("two")
        third = await here.say("three")
        here.agent.let_go(0)
        assert (await first.wait()).text == "answer 0"
        assert not second.done
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
        assert (await second.wait()) == (await third.wait())
        assert here.agent.inputs() == [["one"], ["two", "three"]]


async def test_steered_input_that_was_not_taken_waits_in_inbox_order(start):
    async with room(start) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await here.say("two", busy="queue")
        await here.say("three", busy="steer")
        await here.say("four", busy="queue")
        here.agent.let_go(0, 1)
        second = await here.agent.wait_begun(1)
        assert here.agent.inputs()[1] == ["two", "three", "four"]
        assert second.turn_id == 2


async def test_steered_input_stays_with_the_turn_that_is_interrupted_after_it(start):
    taken = trio.Event()

    async def work(turn):
        while not turn.steered():
            await trio.lowlevel.checkpoint()
        turn.emit(TextDelta("well"))
        taken.set()
        await trio.sleep_forever()

    async with room(start, Patient(turn0=work)) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        second = await here.say("two", busy="steer")
        await taken.wait()
        await here.runtime.interrupt("k")
        assert await first.wait() == await second.wait()
        assert await here.history() == [("user", "one"), ("user", "two"), ("assistant", "well")]


async def test_steered_input_is_not_forgotten_when_an_overflow_makes_the_turn_run_again(start):
    """It is in nobody's history and nobody's input, though its asker gets the reply."""
    heard = []

    async def overflow(turn):
        while not turn.steered():
            await trio.lowlevel.checkpoint()
        return TurnResult(failed=True, error="maximum context length exceeded")

    async def again(turn):
        heard.extend([*turn.history, *turn.input, *turn.steered()])
        return "done"

    class Both(Patient):
        async def run(self, turn):
            number = len(self.turns)
            self.turns.append(turn)
            self._begun.set()
            if number < 6:
                return TurnResult(text="so " * 400)
            said = await (overflow if number == 6 else again)(turn)
            return said if isinstance(said, TurnResult) else TurnResult(text=said)

    config = Config(compression=CompressionConfig(window=2000, max_output=100, share=0.99))
    agent = Both()
    async with room(start, agent, config=config, compressor=DeterministicCompressor()) as here:
        for n in range(6):
            await here.runtime.ask("k", f"text {n} " * 20)
        first = await here.say("one")
        await agent.wait_begun(6)
        await here.say("hurry", busy="steer")
        assert (await first.wait()).text == "done"
    assert len(agent.turns) == 8
    assert "hurry" in [message.content for message in heard]


# Reject


@pytest.mark.parametrize("way", ["config", "message"])
async def test_rejected_input_is_refused_visibly_and_leaves_nothing_in_the_transcript(start, way):
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")
    config = Config(busy="reject") if way == "config" else Config()
    busy = None if way == "config" else "reject"
    async with room(start, config=config, adapters=[adapter]) as here:
        first = await here.say("one", source=source)
        await here.agent.wait_begun()
        reply = await (await here.say("two", source=source, busy=busy)).wait()
        assert reply.status == "refused"
        assert "send it again" in reply.text
        assert not first.done
        assert [state for _, state, _ in await here.inbox()] == ["open", "done"]
        await adapter.wait_sent(1)
        here.agent.let_go(0)
        await first.wait()
        await adapter.wait_sent(2)
        assert [row.body["kind"] for row in adapter.sent] == ["notice", "reply"]
        assert adapter.texts == [reply.text, "answer 0"]
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]
    assert len(here.agent.turns) == 1


async def test_what_comes_when_nothing_runs_is_never_rejected(start):
    async with room(start, config=Config(busy="reject")) as here:
        for n in range(3):
            asked = await here.say(str(n))
            await here.agent.wait_begun(n)
            here.agent.let_go(n)
            assert (await asked.wait()).text == f"answer {n}"


# By platform, by message, by command


async def test_each_platform_has_its_own_way(start):
    config = Config(busy="queue", busy_by_platform={"chat": "interrupt", "mail": "reject"})
    async with room(start, config=config) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        plain = await here.say("plain")
        mail = await here.say("mail", source=Source("mail"))
        assert (await mail.wait()).status == "refused"
        assert not first.done
        chat = await here.say("chat", source=Source("chat"))
        assert (await first.wait()).status == "interrupted"
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
        assert await plain.wait() == await chat.wait()
        assert here.agent.inputs() == [["one"], ["plain", "chat"]]


async def test_a_message_that_says_what_it_wants_is_heard_before_the_configuration(start):
    async with room(start, config=Config(busy="interrupt")) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        second = await here.say("two", busy="queue")
        third = await here.say("/queue three")
        assert not first.done
        here.agent.let_go(0)
        assert (await first.wait()).status == "complete"
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
        assert await second.wait() == await third.wait()
        assert here.agent.inputs() == [["one"], ["two", "three"]]


async def test_slash_steer_is_heard_by_the_running_turn_and_is_a_message_without_one(start):
    async def work(turn):
        while not (heard := turn.steered()):
            await trio.lowlevel.checkpoint()
        return heard[0].content

    async with room(start, Patient(turn0=work)) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        assert (await (await here.say("/steer left")).wait()).text == "left"
        assert (await first.wait()).text == "left"
        alone = await here.say("/steer right")
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
        assert (await alone.wait()).text == "answer 1"
        assert here.agent.inputs()[1] == ["right"]


@pytest.mark.parametrize("command", ["/queue", "/steer", "/status", "/help", "/usage", "/whoami"])
async def test_what_needs_no_turn_is_answered_beside_the_running_one(start, command):
    async with room(start) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        reply = await (await here.say(command)).wait()
        assert reply.status == "command"
        assert reply.text
        assert not first.done
        here.agent.let_go(0)
        await first.wait()
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]


@pytest.mark.parametrize(
    "when",
    [
        "running",
        "idle",
    ],
)
async def test_a_command_whose_answer_could_not_be_stored_at_first_is_answered_soon(
    start_proxy, when
):
    tries = []

    async def busy_at_first(real, answer):
        tries.append(answer)
        if len(tries) <= 2:  # the answer, and the news that it failed
            raise StoreBusy("another process holds the database")
        return await real(answer)

    agent, asked = Patient(), Asked()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(lambda _: agent, answer=busy_at_first) as runtime,
            trio.open_nursery() as nursery,
        ):
            if when == "running":
                nursery.start_soon(runtime.ask, "k", "one")
                await agent.wait_begun()
            nursery.start_soon(asked.run, lambda: runtime.ask("k", "/help"))
            await wait_all_tasks_blocked()
            agent.let_go(0)
            await wait_all_tasks_blocked()
            assert asked.done
    assert asked.reply.status == "command"


async def test_slash_stop_ends_the_turn_and_drops_what_waits_visibly(start):
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")

    async def work(turn):
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = Patient(turn0=work)
    async with room(start, agent, adapters=[adapter]) as here:
        first = await here.say("one", source=source)
        await agent.wait_begun()
        dropped = [await here.say(text, source=source) for text in ("two", "three")]
        stop = await here.say("/stop", source=source)
        assert (await first.wait()).status == "interrupted"
        said = await stop.wait()
        assert said.status == "command"
        assert said.text == "Stopped. 2 waiting messages were not answered."
        for each in dropped:
            refused = await each.wait()
            assert (refused.status, refused.text) == ("refused", said.text)
        assert {state for _, state, _ in await here.inbox()} == {"done"}
        assert await here.history() == [("user", "one"), ("assistant", "half")]
        await adapter.wait_sent(1)
        assert adapter.texts == [said.text]
        after = await here.say("four", source=source)
        await agent.wait_begun(1)
        agent.let_go(1)
        assert (await after.wait()).text == "answer 1"
    assert agent.inputs() == [["one"], ["four"]]


async def test_what_was_dropped_is_told_once_in_each_chat_that_waits(start):
    """One conversation may be led from several places."""
    adapter = MemoryAdapter()
    here_and_there = [Source("memory", chat_id=chat) for chat in "cdd"]
    agent = Patient()
    async with room(start, agent, adapters=[adapter]) as here:
        await here.say("one", source=here_and_there[0])
        await agent.wait_begun()
        for source in here_and_there:
            await here.say("two", source=source)
        said = await (await here.say("/stop", source=here_and_there[0])).wait()
        await adapter.wait_sent(2)
    assert said.text == "Stopped. 3 waiting messages were not answered."
    assert sorted((row.body["chat_id"], row.body["text"]) for row in adapter.sent) == [
        ("c", said.text),
        ("d", said.text),
    ]


@pytest.mark.parametrize("command", ["/new", "/reset the next"])
async def test_slash_new_during_a_turn_keeps_what_was_said_and_begins_anew(start, command):
    async def work(turn):
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = Patient(turn0=work)
    async with room(start, agent) as here:
        first = await here.say("one")
        await agent.wait_begun()
        waiting = await here.say("two")
        new = await here.say(command)
        interrupted = await first.wait()
        assert interrupted.status == "interrupted"
        assert (await waiting.wait()).status == "refused"
        said = await new.wait()
        assert "New session" in said.text
        assert "1 waiting message was not answered" in said.text
        assert await here.history() == []
        after = await here.say("three")
        turn = await agent.wait_begun(1)
        assert list(turn.history) == []
        assert turn.session_id != interrupted.session_id
        agent.let_go(1)
        await after.wait()
        old = await here.store.get_messages(interrupted.session_id)
        assert texts_of(old) == [("user", "one"), ("assistant", "half")]
        assert await here.history() == [("user", "three"), ("assistant", "answer 1")]


async def test_slash_stop_says_when_there_is_nothing_to_stop(start):
    async with room(start) as here:
        assert (await here.runtime.ask("k", "/stop")).text == "Nothing is running."


async def test_slash_stop_does_not_claim_what_slash_new_has_stopped(start):
    async with room(start) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await (await here.say("/new")).wait()
        assert (await here.runtime.ask("k", "/stop")).text == "Nothing is running."


@inline_only
async def test_slash_stop_says_that_it_stopped_although_another_interrupts_too(start):
    cancelled, gate = trio.Event(), trio.Event()

    async def slow_to_end(turn):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
            with trio.CancelScope(shield=True):
                await gate.wait()

    agent = Patient(turn0=slow_to_end)
    async with room(start, agent) as here:
        await here.say("one")
        await agent.wait_begun()
        stop = await here.say("/stop")
        await cancelled.wait()
        await here.say("two", busy="interrupt")
        agent.let_go(1)
        gate.set()
        assert (await stop.wait()).text == "Stopped."


@inline_only
async def test_slash_stop_drops_all_that_waits_however_much_it_is(start):
    async with room(start) as here:
        await here.say("0")
        await here.agent.wait_begun()
        for n in range(1, 71):
            await here.runtime.submit(Inbound("k", f"e{n}", str(n)))
        stop = await here.say("/stop")
        here.agent.let_go(1, 2, 3)
        assert "70 waiting messages" in (await stop.wait()).text
    assert len(here.agent.turns) == 1


# Agents that do not behave


async def test_what_a_turn_that_is_over_says_is_refused(start):
    refused = []
    async with room(start) as here:

        async def stray(turn, over):
            await over.wait()
            for call in (lambda: turn.emit(TextDelta("late")), turn.steered):
                with pytest.raises(TurnClosed, match=f"turn {turn.turn_id} is over"):
                    call()
                refused.append(call)

        asked = await here.say("one")
        turn = await here.agent.wait_begun()
        over = trio.Event()
        here.nursery.start_soon(stray, turn, over)
        await here.runtime.interrupt("k")
        await asked.wait()
        over.set()
        await here.say("two")
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
    assert len(refused) == 2


async def test_an_agent_that_swallows_the_cancellation_has_its_say(start):
    async def stubborn(turn):
        with suppress(trio.Cancelled):
            await trio.sleep_forever()
        return "all the same"

    agent = Patient(turn0=stubborn)
    async with room(start, agent) as here:
        asked = await here.say("one")
        await agent.wait_begun()
        await here.runtime.interrupt("k")
        assert (await asked.wait()).text == "all the same"
        after = await here.say("two")
        await agent.wait_begun(1)
        agent.let_go(1)
        assert (await after.wait()).text == "answer 1"
        assert ("assistant", "all the same") in await here.history()


async def test_an_agent_that_ignores_the_cancellation_holds_up_nobody_else(start):
    cancelled, gate = trio.Event(), trio.Event()

    async def deaf(turn):
        with trio.CancelScope(shield=True):
            cancelled.set()
            await gate.wait()
        await trio.lowlevel.checkpoint()

    agent = Patient(turn0=deaf)
    async with room(start, agent) as here:
        asked = await here.say("one")
        await cancelled.wait()
        await here.runtime.interrupt("k")
        other = await here.say("two", key="other")
        await agent.wait_begun(1)
        agent.let_go(1)
        assert (await other.wait()).status == "complete"
        assert not asked.done
        gate.set()
        assert (await asked.wait()).status == "interrupted"


@pytest.mark.parametrize("error", [ValueError("in cleanup"), SystemExit(3), TurnClosed("over")])
async def test_an_agent_that_raises_when_it_is_cancelled_was_interrupted(start, error):
    async def cross(turn):
        turn.emit(TextDelta("half"))
        try:
            await trio.sleep_forever()
        finally:
            raise error

    agent = Patient(turn0=cross)
    async with room(start, agent) as here:
        asked = await here.say("one")
        await agent.wait_begun()
        await here.runtime.interrupt("k")
        assert (await asked.wait()).status == "interrupted"
        assert await here.history() == [("user", "one"), ("assistant", "half")]


@inline_only
async def test_an_agent_whose_helper_raises_when_it_is_cancelled_was_interrupted(
    start, autojump_clock
):
    """Any agent that runs its tools in a nursery can do this."""

    async def cross(turn):
        async def tool():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("in cleanup")

        turn.emit(TextDelta("half"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tool)
            await trio.sleep_forever()

    agent = Patient(turn0=cross, turn1=cross)
    async with room(start, agent) as here:
        asked = await here.say("one")
        await agent.wait_begun()
        await wait_all_tasks_blocked()
        await here.runtime.interrupt("k")
        with trio.move_on_after(3):
            assert (await asked.wait()).status == "interrupted"
        await here.runtime.interrupt("k")  # it was run again
        assert await here.history() == [("user", "one"), ("assistant", "half")]
    assert len(agent.turns) == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("my own"),
        SystemExit(3),
        ExceptionGroup("many", [ValueError("my own")]),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_agent_that_raises_fails_its_turn_and_nothing_else(start, error):
    async def fail(turn):
        turn.emit(TextDelta("half"))
        raise error

    agent = Patient(turn0=fail)
    async with room(start, agent) as here:
        reply = await here.runtime.ask("k", "one")
        assert reply.status == "failed"
        assert "/retry" in reply.text
        assert type(leaf(error)).__name__ in reply.error
        after = await here.say("two")
        await agent.wait_begun(1)
        agent.let_go(1)
        assert (await after.wait()).text == "answer 1"
        assert [state for _, state, _ in await here.inbox()] == ["done", "done"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        b"bytes",
        TurnResult(rows=[Message("assistant", "x", parts=({"a": object()},))]),
        TurnResult(text=5),
        TurnResult(rows=["words"]),
    ],
    ids=["nothing", "number", "bytes", "unstorable", "numeric text", "rows of words"],
)
async def test_an_agent_that_answers_nonsense_fails_its_turn_and_runs_once(start, answer):
    class Raw(Patient):
        async def run(self, turn):
            self.turns.append(turn)
            return answer if len(self.turns) == 1 else TurnResult(text="well")

    agent = Raw()
    async with room(start, agent) as here:
        reply = await here.runtime.ask("k", "one")
        assert reply.status == "failed"
        assert (await here.runtime.ask("k", "two")).text == "well"
        assert ("user", "one") in await here.history()
    assert len(agent.turns) == 2


@inline_only
async def test_an_agent_that_emits_nonsense_fails_its_turn_and_runs_once(start, autojump_clock):
    async def nonsense(turn):
        turn.emit(TextDelta(None))
        return "well"

    agent = Patient(turn0=nonsense, turn1=nonsense, turn2=nonsense)
    async with room(start, agent) as here:
        with trio.move_on_after(5):
            await here.runtime.ask("k", "one")
    assert len(agent.turns) == 1


async def _listen(runtime):
    async with runtime.stream("k", "and you?") as stream:
        await anext(stream)


OWN = {
    "ask": lambda runtime: runtime.ask("k", "and you?"),
    "undo": lambda runtime: runtime.undo("k"),
    "stream": _listen,
    "new_session": lambda runtime: runtime.new_session("k"),
    "close": lambda runtime: runtime.close("k"),
    "compress": lambda runtime: runtime.compress("k"),
    "set_title": lambda runtime: runtime.set_title("k", "mine"),
}


@pytest.mark.parametrize(
    "verb",
    OWN,
)
@inline_only
async def test_a_turn_that_would_wait_for_itself_is_told_so(start, verb, autojump_clock):
    """Otherwise it stands still until its deadline, half an hour later."""
    refused = []

    async def ask_oneself(turn):
        with pytest.raises(HermesError) as error:
            await OWN[verb](runtime)
        refused.append(str(error.value))
        return "well"

    async with start(agent=lambda _: Patient(turn0=ask_oneself)) as runtime:
        assert (await runtime.ask("k", "one")).text == "well"
        assert trio.current_time() < 1
    assert "wait for itself" in refused[0]


async def test_what_a_turn_has_begun_may_speak_to_its_conversation_once_the_turn_is_over(start):
    """Such as a reminder: it has the turn's context, but the turn does not wait for it."""
    over, reminded = trio.Event(), Asked()

    async def remind():
        await over.wait()
        return await here.runtime.ask("k", "remember")

    async def set_reminder(turn):
        here.nursery.start_soon(reminded.run, remind)
        return "I will"

    async with room(start, Patient(turn0=set_reminder)) as here:
        await here.runtime.ask("k", "remind me")
        over.set()
        here.agent.let_go(1)
        assert (await reminded.wait()).text == "answer 1"


async def test_a_turn_may_use_another_conversation(start):
    async def delegate(turn):
        if turn.session_key == "k":
            return (await runtime.ask("other", "help")).text
        return "here you are"

    async with start(agent=delegate) as runtime:
        with trio.fail_after(SECONDS):
            assert (await runtime.ask("k", "one")).text == "here you are"


@inline_only
async def test_a_turn_that_takes_too_long_is_ended_and_what_it_said_is_kept(start, autojump_clock):
    deadlines = []

    async def slow(turn):
        deadlines.append(turn.deadline - trio.current_time())
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = Patient(turn0=slow)
    async with start(agent=lambda _: agent, config=Config(turn_timeout=60)) as runtime:
        began = trio.current_time()
        reply = await runtime.ask("k", "one")
        assert 60 <= trio.current_time() - began < 61
        assert reply.status == "failed"
        assert "longer than 60 seconds" in reply.text
        assert texts_of(await runtime.history("k")) == [("user", "one"), ("assistant", "half")]
        agent.let_go(1)
        assert (await runtime.ask("k", "two")).text == "answer 1"
    assert deadlines == [60]


@inline_only
async def test_a_turn_that_is_shorter_than_its_deadline_is_left_alone(start, autojump_clock):
    agent = ScriptedAgent(delay=59)
    async with start(agent=lambda _: agent, config=Config(turn_timeout=60)) as runtime:
        assert (await runtime.ask("k", "one")).text == "echo: one"


@inline_only
async def test_an_agent_that_is_built_for_ever_is_given_up_too(start, autojump_clock):
    async def build(spec: AgentSpec):
        if not built:
            built.append(spec)
            await trio.sleep_forever()
        return ScriptedAgent()

    built = []
    async with start(agent=build, config=Config(turn_timeout=60)) as runtime:
        assert (await runtime.ask("k", "one")).status == "failed"
        assert (await runtime.ask("k", "two")).text == "echo: two"


# Streams and events


STEPS = [TextDelta("a"), *calls("x"), ToolFinished("x", "y"), TextDelta("b"), "b"]


async def test_a_stream_tells_what_happens_in_order_and_the_reply_last(start):
    async with start(agent=lambda _: ScriptedAgent([STEPS])) as runtime:
        with trio.fail_after(SECONDS):
            async with runtime.stream("k", "one") as stream:
                heard = [event async for event in stream]
        started, *middle, ended = heard
        assert isinstance(started, TurnStarted)
        assert middle == STEPS[:-1]
        assert isinstance(ended, TurnEnded)
        assert ended.reply == stream.reply
        assert (stream.reply.text, stream.reply.turn_id) == ("b", started.turn_id)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_streams_of_one_conversation_hear_their_own_turns_and_no_others(start):
    async with room(start) as here:
        heard = {}

        async def listen(text):
            async with here.runtime.stream("k", text) as stream:
                heard[text] = [event async for event in stream]

        await here.say("first")
        await here.agent.wait_begun()
        here.nursery.start_soon(listen, "second")
        while len(await here.inbox()) < 2:
            pass
        here.agent.let_go(0)
        turn = await here.agent.wait_begun(1)
        turn.emit(TextDelta("for the second"))
        here.agent.let_go(1)
    assert [type(event) for event in heard["second"]] == [TurnStarted, TextDelta, TurnEnded]
    assert heard["second"][-1].reply.turn_id == turn.turn_id


async def test_leaving_a_stream_early_lets_the_turn_go_on(start):
    async with room(start) as here:
        async with here.runtime.stream("k", "one") as stream:
            await anext(stream)
        await here.agent.wait_begun()
        here.agent.let_go(0)
        await here.say("two")
        await here.agent.wait_begun(1)
        here.agent.let_go(1)
    assert [text for _, text in texts_of(here.agent.turns[1].history)][:2] == ["one", "answer 0"]


async def test_leaving_a_stream_early_stops_the_turn_if_that_was_asked_for(start):
    async with room(start) as here:
        with here.runtime.events("k") as events:
            async with here.runtime.stream("k", "one", interrupt_on_exit=True) as stream:
                await anext(stream)
                await here.agent.wait_begun()
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    assert envelope.event.reply.status == "interrupted"
                    break


async def test_a_stream_that_is_cancelled_stops_the_turn_too(start):
    async with room(start) as here:
        with here.runtime.events("k") as events:
            with trio.CancelScope() as scope:
                async with here.runtime.stream("k", "one", interrupt_on_exit=True) as stream:
                    await anext(stream)
                    await here.agent.wait_begun()
                    scope.cancel()
                    await anext(stream)
            assert scope.cancelled_caught
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    assert envelope.event.reply.status == "interrupted"
                    break


async def test_leaving_a_stream_whose_turn_has_not_begun_stops_no_other_turn(start):
    async with room(start) as here:
        first = await here.say("one")
        await here.agent.wait_begun()
        async with here.runtime.stream("k", "two", interrupt_on_exit=True) as stream:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(stream.__anext__)
                while len(await here.inbox()) < 2:
                    pass
                await here.settle()
                waiting.cancel_scope.cancel()
        await here.settle()
        here.agent.let_go(0, 1)
        assert (await first.wait()).status == "complete"


async def test_a_stream_that_is_read_slowly_tells_everything_all_the_same(start):
    """Only what exceeds the bound of a listener may be lost, and then pieces of text first."""
    async with start(agent=lambda _: ScriptedAgent([STEPS])) as runtime:
        with trio.fail_after(SECONDS), runtime.events("k") as events:
            async with runtime.stream("k", "one") as stream:
                heard = [await anext(stream)]
                async for envelope in events:  # the reader does something else meanwhile
                    if isinstance(envelope.event, TurnEnded):
                        break
                heard += [event async for event in stream]
    assert heard[1:-1] == STEPS[:-1]


async def test_a_slow_listener_loses_pieces_of_text_first_and_never_the_end(start):
    async def flood(turn):
        for event in calls(*(f"c{n}" for n in range(100))):
            turn.emit(event)
            for _ in range(30):
                turn.emit(TextDelta("x"))
        for n in range(100):
            turn.emit(ToolFinished(f"c{n}", "y"))
        return "the end"

    async with start(agent=lambda _: Patient(turn0=flood)) as runtime:
        with runtime.events() as events:
            reply = await runtime.ask("k", "one")
            events.close()
            heard = [envelope.event async for envelope in events]
    assert len(heard) <= 1000
    assert events.lost >= 3202 - 1000
    kinds = [type(event) for event in heard]
    assert kinds.count(ToolStarted) == kinds.count(ToolFinished) == 100
    assert isinstance(heard[0], TurnStarted)
    assert heard[-1] == TurnEnded(reply, (reply.turn_id,))


async def test_a_stream_whose_end_was_crowded_out_ends_all_the_same(start):
    """Its own turn is long over when it is read, and another one has said very much since."""

    async def flood(turn):
        for event in calls(*(f"c{n}" for n in range(1500))):
            turn.emit(event)
        flooded.set()
        await trio.sleep_forever()

    flooded = trio.Event()
    async with room(start, Patient(turn0=lambda turn: answer_at_once(), turn1=flood)) as here:
        async with here.runtime.stream("k", "one") as stream:
            assert isinstance(await anext(stream), TurnStarted)
            await here.say("two")
            await flooded.wait()
            with trio.fail_after(2):
                *_, last = [event async for event in stream]
        assert last.reply.text == "at once"
        await here.runtime.interrupt("k")


async def answer_at_once():
    return "at once"


async def test_events_are_numbered_without_gaps_for_who_hears_all(start):
    async with start() as runtime:
        with runtime.events() as everything, runtime.events("b") as only_b:
            async with trio.open_nursery() as nursery:
                for n in range(10):
                    nursery.start_soon(runtime.ask, "ab"[n % 2], str(n))
            everything.close()
            only_b.close()
            heard = [envelope async for envelope in everything]
            of_b = [envelope async for envelope in only_b]
    assert [envelope.seq for envelope in heard] == [*range(heard[0].seq, heard[-1].seq + 1)]
    assert of_b == [envelope for envelope in heard if envelope.session_key == "b"]
    assert {envelope.session_key for envelope in heard} == {"a", "b"}
    for key in "ab":
        ended = [e.event for e in heard if e.session_key == key and isinstance(e.event, TurnEnded)]
        assert len(ended) == len({each.reply.turn_id for each in ended})


async def test_a_listener_who_waits_when_the_runtime_ends_is_told_that_there_is_no_more(start):
    heard = []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            async with start() as runtime:

                async def listen():
                    heard.extend([type(envelope.event) async for envelope in runtime.events()])

                nursery.start_soon(listen)
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                await runtime.ask("k", "one")
    assert heard == [TurnStarted, TurnEnded]


# The same event again


async def test_who_asks_with_an_event_that_is_still_open_gets_the_same_reply(start):
    async with room(start) as here:
        first = await here.say("one", event_id="e")
        await here.agent.wait_begun()
        again = Asked()
        here.nursery.start_soon(
            again.run, lambda: here.runtime.ask("k", "other words", event_id="e")
        )
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        await here.settle()
        await here.settle()
        here.agent.let_go(0)
        reply = await first.wait()
        assert await again.wait() is reply
        assert reply.turn_id == receipt.inbox_id
    assert here.agent.inputs() == [["one"]]


async def test_who_asks_with_an_event_that_was_answered_is_told_so(start):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e")
        for _ in range(2):
            with pytest.raises(AlreadyAnswered, match="'e'"):
                await runtime.ask("k", "one", event_id="e")
        assert (await runtime.ask("k", "two", event_id="f")).text == "echo: two"
        assert len(await runtime.history("k")) == 4


async def test_the_same_event_id_of_another_account_is_another_event(start):
    async with start() as runtime:
        for account in ("a", "b"):
            reply = await runtime.ask("k", account, event_id="e", source=Source(account=account))
            assert reply.text == f"echo: {account}"


async def test_a_reply_that_comes_while_we_look_whether_there_was_one_is_not_thrown_away(
    start_proxy,
):
    gate = trio.Event()
    looked = trio.Event()

    async def late(real, *args, **kwargs):
        if kwargs.get("limit") == 1:
            looked.set()
            await gate.wait()
        return await real(*args, **kwargs)

    agent = Patient()
    first, again = Asked(), Asked()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(lambda _: agent, open_inbox=late) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first.run, lambda: runtime.ask("k", "one", event_id="e"))
            await agent.wait_begun()
            nursery.start_soon(again.run, lambda: runtime.ask("k", "one", event_id="e"))
            await looked.wait()
            agent.let_go(0)
            await first.wait()
            gate.set()
            assert await again.wait() == first.reply


@inline_only
async def test_a_stream_of_an_event_that_was_answered_says_so(start, autojump_clock):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e")
        with trio.fail_after(2), pytest.raises(AlreadyAnswered):
            async with runtime.stream("k", "one", event_id="e") as stream:
                await anext(stream)


# Who gives up


class Countdown(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


@inline_only
async def test_whenever_an_asker_gives_up_his_message_is_whole_or_absent_and_nothing_sticks(start):
    """Cancelled at every step from before the commit to after the reply."""
    cancelled, answered = 0, 0
    async with start() as runtime:
        for steps in range(1, 60):
            with trio.fail_after(SECONDS):
                with trio.CancelScope() as scope:
                    countdown = Countdown(scope, steps)
                    trio.lowlevel.add_instrument(countdown)
                    try:
                        await runtime.ask("k", f"text {steps}", event_id=f"e{steps}")
                        answered += 1
                    finally:
                        trio.lowlevel.remove_instrument(countdown)
                cancelled += scope.cancelled_caught
                try:
                    again = await runtime.ask("k", f"text {steps}", event_id=f"e{steps}")
                    assert again.text.endswith(f"echo: text {steps}")
                except AlreadyAnswered:
                    pass
        asked = [row.content for row in await runtime.history("k") if row.role == "user"]
        assert asked == [f"text {steps}" for steps in range(1, 60)]
        assert runtime._context.waiters._waiting == {}
    assert cancelled > 5
    assert answered > 10


async def test_a_submitter_that_is_cancelled_after_the_commit_leaves_a_message_that_is_answered(
    start,
):
    async with room(start) as here:
        with trio.CancelScope() as scope:

            async def give_up():
                await here.agent.wait_begun()
                scope.cancel()

            here.nursery.start_soon(give_up)
            await here.runtime.ask("k", "one")
        assert scope.cancelled_caught
        with here.runtime.events("k") as events:
            here.agent.let_go(0)
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    break
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]


# Hostile input

NOTHING = {"key": "k", "text": "hello"}
DEEP = functools.reduce(lambda inner, _: {"a": inner}, range(200), {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""},
        {"key": "k" * 1001},
        {"key": "two\nlines"},
        {"key": "nul\0"},
        {"text": "x" * 1_000_001},
        {"parts": [DEEP]},
        {"parts": [{"type": "image", "data": "x" * 1_000_001}]},
        {"busy": "sometimes"},
        {"source": Source(chat_id=5)},
        {"source": Source(5)},
        {"event_id": 5},
        {"key": None},
        {"text": None},
        {"text": b"bytes"},
    ],
    ids=lambda wrong: " ".join(f"{name} {str(value)[:12]!r}" for name, value in wrong.items()),
)
async def test_input_that_cannot_be_taken_is_refused_in_one_sentence_and_harms_nobody(start, wrong):
    given_ = {**NOTHING, **wrong}
    key, text = given_.pop("key"), given_.pop("text")
    async with start() as runtime:
        with trio.fail_after(SECONDS):
            with pytest.raises((HermesError, ValueError)) as refused:
                await runtime.ask(key, text, **given_)
            sentence = str(refused.value)
            assert 10 < len(sentence) < 300
            assert "\n" not in sentence
            assert (await runtime.ask("k", "hello")).text == "echo: hello"
            assert runtime._context.waiters._waiting == {}
            rows = await runtime._context.store.open_inbox()
            assert rows == []


@pytest.mark.parametrize(
    "text",
    ["", " ", "\0", "half \ud800 character", "x" * 999_000, "/" * 1000, "/nothing", "\u202eleft",
     "'; DROP TABLE inbox; --", "{}", "/steer@" + "a" * 100_000, "/new@bot!", "💥" * 1000],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
async def test_any_text_is_answered_and_kept(start, text):
    async with start() as runtime:
        with trio.fail_after(SECONDS):
            reply = await runtime.ask("k", text)
            assert reply.status in {"complete", "command"}
            rows = await runtime.history("k")
            if reply.status == "complete":
                assert rows[0].content == text.encode(errors="replace").decode()
            assert (await runtime.ask("k", "hello")).text == "echo: hello"


async def test_a_key_that_looks_like_anything_is_only_a_key(start):
    keys = ["a:b", "%", "'; --", "🙂", "k" * 1000, "K", "k"]
    async with start() as runtime:
        for key in keys:
            await runtime.ask(key, f"to {key}")
        for key in keys:
            assert texts_of(await runtime.history(key))[0] == ("user", f"to {key}")


async def test_a_message_is_not_changed_by_what_its_sender_does_to_it_afterwards(start):
    """What is answered is what was acknowledged, and what would be answered after a crash."""
    part = {"type": "text", "text": "before"}
    async with room(start) as here:
        await here.say("one")
        await here.agent.wait_begun()
        await here.say("two", parts=[part])
        part["text"] = "after"
        here.agent.let_go(0, 1)
        second = await here.agent.wait_begun(1)
        assert second.input[0].parts == ({"type": "text", "text": "before"},)


@pytest.mark.parametrize("argument", ["x", "-1", "1.5", "all", "²"])
async def test_an_undo_of_nonsense_takes_nothing_back(start, argument):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        before = await runtime.history("k")
        reply = await runtime.ask("k", f"/undo {argument}")
        assert reply.text == "Use it like this: /undo [number]"
        assert await runtime.history("k") == before
        assert (await runtime.ask("k", "/undo")).text == "Taken back: hello"
