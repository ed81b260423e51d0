"""Automatic titles, generated after the first exchange of a conversation."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
import trio.testing

from hermes import Usage
from hermes.actors.auto_title import MAX_MESSAGES
from hermes.errors import UnknownSession
from hermes.events import TitleChanged, TurnEnded
from hermes.messages import Message, Title, TurnResult
from hermes.protocols import Summary
from hermes.testing import DeterministicCompressor, texts_of
from tests.support.runtime import SECONDS, with_threads


@attrs.define
class Titler:
    """A titler that returns a fixed text, after its gate is open if it has one."""

    said: str = "A talk"
    error: Exception | None = None
    gate: trio.Event | None = None
    requests: list = attrs.Factory(list)
    called: trio.Event = attrs.Factory(trio.Event)

    async def title(self, request):
        self.requests.append(request)
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Summary(self.said, [Usage("turn", "small", input_tokens=7, cost=0.5)])


async def echo(turn):
    return f"you said {turn.text}"


async def title_of(runtime):
    [listed] = await runtime.conversation("k").sessions()
    return listed.session.title


async def titled(events):
    async for envelope in events:
        if isinstance(envelope.event, TitleChanged):
            return envelope.event
    raise AssertionError("there is no title")


@with_threads
async def test_a_conversation_gets_a_title_after_its_first_exchange(start):
    titler = Titler(' "Title: Of the sea."\nand more')
    async with start(agent=echo, titler=titler) as runtime:
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            reply = await runtime.ask("k", "tell me of the sea")
            event = await titled(events)
        await runtime.ask("k", "and more")
        title = await title_of(runtime)
        usage = await runtime.ask("k", "/usage")
    assert (event.session_id, event.title, title) == (reply.session_id, *["Of the sea"] * 2)
    [request] = titler.requests
    assert texts_of(request.messages) == [
        ("user", "tell me of the sea"), ("assistant", "you said tell me of the sea"),
    ]  # fmt: skip
    assert "7 input tokens" in usage.text


async def test_an_automatic_title_in_use_gets_a_number(start):
    async with start(agent=echo, titler=Titler("Of bees")) as runtime:
        for stored in ("Of bees", "Of bees #2"):
            with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
                await runtime.ask("k", "hello")
                event = await titled(events)
            assert event.title == stored
            assert await runtime.conversation("k").title() == Title(stored)
            await runtime.conversation("k").new()


async def test_two_keys_may_get_the_same_automatic_title(start):
    async with start(agent=echo, titler=Titler("Of bees")) as runtime:
        for key in ("k1", "k2"):
            with runtime.subscribe(key) as events, trio.fail_after(SECONDS):
                await runtime.ask(key, "hello")
                assert (await titled(events)).title == "Of bees"


@with_threads
@pytest.mark.parametrize("how", ["set_title", "new", "/new"])
async def test_the_title_is_stored_when_the_reply_is_given(start, how):
    async with start(agent=echo) as runtime:
        for number in range(30):
            conversation = runtime.conversation(f"k{number % 3}")
            title = f"Plans {number}"
            if how == "/new":
                await conversation.ask(f"/new {title}")
            else:
                await conversation.new(title if how == "new" else None)
            if how == "set_title":
                await conversation.set_title(title)
            assert await conversation.title() == Title(title, pending=True)
            reply = await conversation.ask("hello")
            assert await conversation.title() == Title(title)
            assert (await runtime.admin.find(reply.session_id)).session.title == title


async def test_a_title_does_not_count_as_a_call_of_the_session(start, path):
    async with start(agent=echo, titler=Titler("The sea")) as runtime:
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            await runtime.ask("k", "tell me of the sea")
            await titled(events)
        [listed] = await runtime.conversation("k").sessions()
    session = listed.session
    assert (session.model, session.api_call_count, session.input_tokens) == (None, 0, 0)
    assert session.cost == 0.5


async def test_titles_are_redacted(start):
    titler = Titler("about hunter-two")
    redact = lambda text: text.replace("hunter-two", "[hidden]")  # noqa: E731
    async with start(agent=echo, titler=titler, redact=redact) as runtime:
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            await runtime.ask("k", "hello")
            assert (await titled(events)).title == "about [hidden]"
        assert await title_of(runtime) == "about [hidden]"


async def test_a_conversation_deleted_during_titling_stays_deleted(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            reply = await runtime.ask("k", "forget this")
            await titler.called.wait()
            await runtime.admin.delete(reply.session_id)
            titler.gate.set()
            await trio.testing.wait_all_tasks_blocked()
        assert await runtime.admin.sessions() == []


async def test_no_turn_waits_for_a_title(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titler.called.wait()
            assert (await runtime.ask("k", "two")).text == "you said two"
    assert len(titler.requests) == 1


async def test_a_title_of_the_user_is_not_replaced(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titler.called.wait()
            await runtime.conversation("k").set_title("Mine")
            titler.gate.set()
            await runtime.ask("k", "two")
            assert await title_of(runtime) == "Mine"
            await runtime.conversation("k").new("Before the first word")
            await runtime.ask("k", "three")
            await runtime.ask("k", "four")  # the title is applied by then
            titles = {each.session.title for each in await runtime.conversation("k").sessions()}
    assert titles == {"Mine", "Before the first word"}
    assert len(titler.requests) == 1


async def test_a_failed_attempt_is_repeated_while_the_conversation_is_short(start):
    titler = Titler(error=UnknownSession("no model"))
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            for number in range(MAX_MESSAGES):
                await runtime.ask("k", f"{number}")
                await trio.testing.wait_all_tasks_blocked()
        assert await title_of(runtime) is None
    assert len(titler.requests) == MAX_MESSAGES // 2


async def test_a_first_exchange_with_many_rows_gets_a_title(start):
    async def work(turn):
        rows = [Message("assistant", f"step {number}") for number in range(2 * MAX_MESSAGES)]
        return TurnResult(text="done", rows=[*rows, Message("assistant", "done")])

    async with start(agent=work, titler=Titler("Of work")) as runtime:
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titled(events)
        assert await title_of(runtime) == "Of work"


@with_threads
async def test_an_attempt_cut_short_by_the_end_of_the_runtime_is_repeated_after_the_restart(start):
    cut = Titler(gate=trio.Event())
    async with start(agent=echo, titler=cut) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await cut.called.wait()
    async with start(agent=echo, titler=Titler("Late")) as runtime:
        assert await title_of(runtime) is None
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            await runtime.ask("k", "two")
            await titled(events)
        assert await title_of(runtime) == "Late"


async def test_a_conversation_compressed_during_titling_keeps_its_title_in_the_child(start):
    titler = Titler(gate=trio.Event())
    compressor = DeterministicCompressor()
    async with start(agent=echo, titler=titler, compressor=compressor) as runtime:
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            for word in ("one " * 500, "two " * 500, "three", "four", "five"):
                await runtime.ask("k", word)
            before = (await runtime.conversation("k").status()).session_id
            await runtime.conversation("k").compress(keep_exchanges=1)
            assert (await runtime.conversation("k").status()).session_id != before
            titler.gate.set()
            await titled(events)
        assert (await runtime.conversation("k").status()).title == "A talk"


async def test_failed_turns_and_background_tasks_get_no_title(start):
    async def agent(turn):
        if turn.text == "fail":
            return TurnResult(failed=True, error="no")
        return TurnResult(text="done", usage=[Usage(output_tokens=3)])

    titler = Titler()
    async with start(agent=agent, titler=titler) as runtime:
        with runtime.subscribe() as events, trio.fail_after(SECONDS):
            await runtime.ask("k", "fail")
            await runtime.ask("k", "/background count the sheep")
            async for envelope in events:
                if envelope.session_key != "k" and isinstance(envelope.event, TurnEnded):
                    [call] = envelope.event.reply.usage
                    break
    assert titler.requests == []
    assert call.purpose == "background"


WRONG = {
    "text": ("a text", "returned str, not a hermes.Summary"),
    "nothing": (None, "returned NoneType, not a hermes.Summary"),
    "number": (Summary(3), "returned a Summary whose text is int, not a string"),
    "usage": (
        Summary("A talk", [3]),
        "that is not valid: an item of usage must be a Usage, not int",
    ),
    "blank": (Summary(' "" '), "returned an empty title"),
}


@pytest.mark.parametrize(("answer", "problem"), WRONG.values(), ids=WRONG)
async def test_an_invalid_result_of_a_titler_is_ignored_with_a_warning(
    start, caplog, answer, problem
):
    class InvalidTitler:
        async def title(self, _):
            return answer

    async with start(agent=echo, titler=InvalidTitler()) as runtime:
        for text in ("one", "two"):
            assert (await runtime.ask("k", text)).status == "complete"
            await trio.testing.wait_all_tasks_blocked()
        assert await title_of(runtime) is None
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all(said.endswith(problem) for said in warnings), warnings
