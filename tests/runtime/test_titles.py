"""Titles that a conversation gets by itself, after its first exchange."""

from __future__ import annotations

import attrs
import pytest
import trio
from hypothesis import given, strategies as st

from hermes import Usage
from hermes.actors.auto_title import LENGTH, YOUNG, short
from hermes.errors import UnknownSession
from hermes.events import TitleChanged
from hermes.messages import Message, TurnResult
from hermes.protocols import Summary
from hermes.store.conversations.titles import sanitize_title
from hermes.testing import DeterministicCompressor, texts_of

SECONDS = 20


@attrs.define
class Titler:
    """Says what it is told to; waits for a gate first where there is one."""

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
        return Summary(self.said, [Usage("title", "small", input_tokens=7, cost=0.5)])


async def echo(turn):
    return f"you said {turn.text}"


async def title_of(runtime):
    [listed] = await runtime.sessions("k")
    return listed.session.title


async def titled(heard):
    async for envelope in heard:
        if isinstance(envelope.event, TitleChanged):
            return envelope.event
    raise AssertionError("there is no title")


async def test_the_first_exchange_gives_the_conversation_a_title(start):
    titler = Titler(' "Title: Of the sea."\nand more')
    async with start(agent=echo, titler=titler) as runtime:
        with runtime.events("k") as heard, trio.fail_after(SECONDS):
            reply = await runtime.ask("k", "tell me of the sea")
            event = await titled(heard)
        await runtime.ask("k", "and more")
        title = await title_of(runtime)
        usage = await runtime.ask("k", "/usage")
    assert (event.session_id, event.title, title) == (reply.session_id, *["Of the sea"] * 2)
    [request] = titler.requests
    assert texts_of(request.messages) == [
        ("user", "tell me of the sea"), ("assistant", "you said tell me of the sea"),
    ]  # fmt: skip
    assert "7 tokens in" in usage.text


async def test_a_title_has_no_secret_in_it(start):
    titler = Titler("about hunter-two")
    redact = lambda text: text.replace("hunter-two", "[hidden]")  # noqa: E731
    async with start(agent=echo, titler=titler, redact=redact) as runtime:
        with runtime.events("k") as heard, trio.fail_after(SECONDS):
            await runtime.ask("k", "hello")
            assert (await titled(heard)).title == "about [hidden]"
        assert await title_of(runtime) == "about [hidden]"


async def test_a_conversation_that_is_deleted_while_it_is_named_stays_deleted(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            reply = await runtime.ask("k", "forget this")
            await titler.called.wait()
            await runtime.delete(reply.session_id)
            titler.gate.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert await runtime.sessions(None) == []


async def test_no_turn_waits_for_a_title(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titler.called.wait()
            assert (await runtime.ask("k", "two")).text == "you said two"
    assert len(titler.requests) == 1


async def test_a_title_of_the_user_stays(start):
    titler = Titler(gate=trio.Event())
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titler.called.wait()
            await runtime.set_title("k", "Mine")
            titler.gate.set()
            await runtime.ask("k", "two")
            assert await title_of(runtime) == "Mine"
            await runtime.new_session("k", "Before the first word")
            await runtime.ask("k", "three")
            await runtime.ask("k", "four")  # by then the title is applied
            titles = {each.session.title for each in await runtime.sessions("k")}
    assert titles == {"Mine", "Before the first word"}
    assert len(titler.requests) == 1


async def test_a_try_that_failed_is_made_again_while_the_conversation_is_young(start):
    titler = Titler(error=UnknownSession("no model"))
    async with start(agent=echo, titler=titler) as runtime:
        with trio.fail_after(SECONDS):
            for number in range(YOUNG):
                await runtime.ask("k", f"{number}")
                await trio.testing.wait_all_tasks_blocked()
        assert await title_of(runtime) is None
    assert len(titler.requests) == YOUNG // 2


async def test_a_first_exchange_with_much_work_in_it_is_one_too(start):
    async def work(turn):
        rows = [Message("assistant", f"step {number}") for number in range(2 * YOUNG)]
        return TurnResult(text="done", rows=[*rows, Message("assistant", "done")])

    async with start(agent=work, titler=Titler("Of work")) as runtime:
        with runtime.events("k") as heard, trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await titled(heard)
        assert await title_of(runtime) == "Of work"


async def test_a_title_that_the_end_of_the_runtime_cut_short_comes_after_the_next_start(start):
    cut = Titler(gate=trio.Event())
    async with start(agent=echo, titler=cut) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
            await cut.called.wait()
    async with start(agent=echo, titler=Titler("Late")) as runtime:
        assert await title_of(runtime) is None
        with runtime.events("k") as heard, trio.fail_after(SECONDS):
            await runtime.ask("k", "two")
            await titled(heard)
        assert await title_of(runtime) == "Late"


async def test_a_conversation_that_was_compressed_meanwhile_has_its_title_where_it_goes_on(start):
    titler = Titler(gate=trio.Event())
    compressor = DeterministicCompressor()
    async with start(agent=echo, titler=titler, compressor=compressor) as runtime:
        with runtime.events("k") as heard, trio.fail_after(SECONDS):
            for word in ("one " * 500, "two " * 500, "three", "four", "five"):
                await runtime.ask("k", word)
            before = (await runtime.status("k")).session_id
            await runtime.compress("k", keep_exchanges=1)
            assert (await runtime.status("k")).session_id != before
            titler.gate.set()
            await titled(heard)
        assert (await runtime.status("k")).title == "A talk"


async def test_a_failed_turn_and_work_in_the_background_get_no_title(start):
    async def agent(turn):
        if turn.text == "fail":
            return TurnResult(failed=True, error="no")
        return TurnResult(text="done", usage=[Usage(output_tokens=3)])

    titler = Titler()
    async with start(agent=agent, titler=titler) as runtime:
        with runtime.events() as heard, trio.fail_after(SECONDS):
            await runtime.ask("k", "fail")
            await runtime.ask("k", "/background count the sheep")
            async for envelope in heard:
                if envelope.session_key != "k" and type(envelope.event).__name__ == "TurnEnded":
                    [call] = envelope.event.reply.usage
                    break
    assert titler.requests == []
    assert call.purpose == "background"


@pytest.mark.parametrize("answer", ["a text", None, Summary(3)])
async def test_a_titler_that_answers_with_something_else_harms_nobody(start, answer):
    class Odd:
        async def title(self, _):
            return answer

    async with start(agent=echo, titler=Odd()) as runtime:
        assert (await runtime.ask("k", "one")).status == "complete"
        assert (await runtime.ask("k", "two")).status == "complete"
        assert await title_of(runtime) is None


@given(st.text())
def test_what_a_model_calls_a_title_is_a_line_of_some_words(text):
    title = short(text)
    assert len(title) <= LENGTH
    assert sanitize_title(title) is None or len(sanitize_title(title)) <= LENGTH
    assert short(title) == short(short(title))


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("**Of the sea**", "Of the sea"),
        ("\n\n# Title: 'Of the sea'.", "Of the sea"),
        ("Trains: a history", "Trains: a history"),
        ("word " * 40, "word " * 15 + "word…"),
        (" \n ", ""),
    ],
)
def test_a_title_is_freed_of_what_stands_around_it(said, title):
    assert short(said) == title
