"""Lone surrogates, which UTF-8 cannot encode, are replaced wherever a text comes in."""

from __future__ import annotations

import msgspec
import pytest
import trio

from hermes import Source
from hermes.errors import UnknownSession
from hermes.events import Notice, ReasoningDelta, TextDelta
from hermes.messages import Inbound, Message, TurnResult
from hermes.sanitize import encodable, scrub
from hermes.store import SessionStore, open_store
from hermes.testing import MemoryAdapter
from tests.support.boundaries import FINALIZE
from tests.support.runtime import SECONDS, with_threads

HALF = "half \ud83d of it"
CLEAN = scrub(HALF)


def refused(kind, call):
    """A verb that finds nothing under this name, or refuses it, and says so."""

    async def check(runtime):
        with pytest.raises(kind) as caught:
            await call(runtime)
        assert not isinstance(caught.value, UnicodeError)

    return check


async def stream(runtime):
    async with runtime.stream("k", HALF) as events:
        return [event async for event in events]


async def talk(runtime, **options):
    reply = await runtime.ask("k", "hello", **options)
    assert reply.status == "complete", reply.error
    return reply


async def title(runtime):
    await runtime.ask("k", "hello")
    await runtime.conversation("k").set_title(HALF)
    assert (await runtime.conversation("k").title()).text == "half of it"  # as all invisible ones


async def repeat(runtime):
    await runtime.ask("k", "hello", event_id=HALF)
    return await runtime.reply_of("k", HALF)


async def keep(runtime):
    await runtime.adapter_state.set(HALF, HALF)
    assert await runtime.adapter_state.get(HALF) == CLEAN


ENTRIES = {
    "ask": lambda r: r.ask("k", HALF),
    "parts": lambda r: r.ask("k", parts=[{"type": "text", "text": HALF, HALF: [HALF]}]),
    "source": lambda r: r.ask("k", "hi", source=Source(HALF, HALF, chat_id=HALF, user_id=HALF)),
    "event_id": repeat,
    "metadata": lambda r: talk(r, metadata={HALF: {HALF: [HALF]}}),
    "stream": stream,
    "submit": lambda r: r.submit(Inbound("k", HALF, HALF, Source("memory", chat_id=HALF))),
    "steer": lambda r: r.conversation("k").steer(HALF),
    "title": title,
    "new": lambda r: r.conversation("k").new(HALF),
    "/title": lambda r: r.ask("k", f"/title {HALF}"),
    "/new": lambda r: r.ask("k", f"/new {HALF}"),
    "/resume": lambda r: r.ask("k", f"/resume {HALF}"),
    "/background": lambda r: r.ask("k", f"/background {HALF}"),
    "post": lambda r: r.post("k", HALF),
    "configure": lambda r: r.conversation("k").configure(metadata={HALF: HALF}),
    "search": lambda r: r.conversation("k").search(HALF),
    "search role": lambda r: r.conversation("k").search("hello", role=HALF),
    "compress": lambda r: r.conversation("k").compress(HALF),
    "close": lambda r: r.conversation("k").close(reason=HALF),
    "find": lambda r: r.admin.find(HALF),
    "adapter_state": keep,
    "switch": refused(UnknownSession, lambda r: r.conversation("k").switch(HALF)),
    "messages": refused(UnknownSession, lambda r: r.admin.messages(HALF)),
    "delete": refused(UnknownSession, lambda r: r.admin.delete(HALF)),
    "archive": refused(UnknownSession, lambda r: r.admin.archive(HALF)),
    "own archive": refused(UnknownSession, lambda r: r.conversation("k").archive(HALF)),
    "key": refused(ValueError, lambda r: r.ask(HALF, "hello")),
    "key of a post": refused(ValueError, lambda r: r.post(HALF, "hello")),
    "key of a reply": refused(ValueError, lambda r: r.reply_of(HALF, "e")),
    "key of a branch": refused(ValueError, lambda r: r.conversation("k").branch(to=HALF)),
}


@with_threads
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
async def test_a_text_of_the_host_may_have_them(start, entry):
    with trio.fail_after(SECONDS):
        async with start(adapters=[MemoryAdapter("memory")]) as runtime:
            msgspec.json.encode(await entry(runtime))
            assert (await runtime.ask("after", "hello")).text == "echo: hello"
            for session in await runtime.admin.sessions():
                msgspec.json.encode(await runtime.admin.messages(session.root_session_id))
            msgspec.json.encode(await runtime.admin.sessions())


STORE_IDS = {
    "get_session": lambda s: s.get_session(HALF),
    "get_route": lambda s: s.get_route(HALF),
    "find": lambda s: s.find(HALF),
    "resolve_session_by_title": lambda s: s.resolve_session_by_title(HALF),
    "get_messages": lambda s: s.get_messages(HALF),
    "list_sessions": lambda s: s.list_sessions(session_key=HALF),
    "search_messages": lambda s: s.search_messages("hello", role=HALF),
    "create_session": lambda s: s.create_session("new", HALF),
    "create_session key": lambda s: s.create_session("new", "cli", session_key=HALF),
    "append_message": lambda s: s.append_message(HALF, "user", "hello"),
    "append_message id": lambda s: s.append_message("s", "user", "a", platform_message_id=HALF),
    "set_title": lambda s: s.set_title(HALF, "title"),
    "set_session_title": lambda s: s.set_session_title(HALF, "title"),
    "switch": lambda s: s.switch("k", HALF),
    "new_session": lambda s: s.new_session("k", reason=HALF),
    "set_meta": lambda s: s.set_meta(HALF, "value"),
    "acquire_lease": lambda s: s.acquire_lease("s", HALF, ttl_seconds=1),
    "delete_session": lambda s: s.delete_session(HALF),
    "export_session": lambda s: s.export_session(HALF),
}


@pytest.mark.parametrize("call", STORE_IDS.values(), ids=STORE_IDS)
async def test_ids_of_the_store_cannot_have_them(path, call):
    with SessionStore(path) as store:
        store.create_session("s", "cli")
        with pytest.raises(ValueError, match="names cannot have lone surrogates: 'half ") as plain:
            call(store)
    async with open_store(path) as store:
        with pytest.raises(ValueError, match="names cannot have lone surrogates: 'half ") as later:
            await call(store)
    assert type(plain.value) is type(later.value) is ValueError


def test_texts_of_the_store_may_have_them(path):
    with SessionStore(path) as store:
        store.create_session("a", "cli", system_prompt=HALF, model_config={HALF: HALF})
        store.create_session("b", "cli")
        store.set_system_prompt("b", HALF)
        store.set_session_title("b", HALF)
        store.append_message("b", "user", HALF)
        assert [store.get_session(name).system_prompt for name in "ab"] == [CLEAN, CLEAN]
        assert store.get_session("a").model_config == {CLEAN: CLEAN}
        assert store.get_session("b").title == "half of it"
        assert store.get_messages("b")[0].content == CLEAN


async def raises(turn):
    raise ValueError(HALF)


ANSWERS = {
    "text": HALF,
    "result": TurnResult(text=HALF),
    "data": TurnResult(text="ok", data={HALF: [HALF, 1, None]}),
    "rows": TurnResult(text="ok", rows=(Message("assistant", HALF, reasoning=HALF),)),
    "error": TurnResult(failed=True, error=HALF),
    "exception": raises,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_may_have_them(start, answer):
    async def agent(turn):
        for event in (TextDelta(HALF), ReasoningDelta(HALF), Notice(HALF)):
            turn.emit(event)
        return await answer(turn) if callable(answer) else answer

    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime:
            with runtime.subscribe() as events:
                reply = await runtime.ask("k", "hello")
                seen = events.take_ready()
            msgspec.json.encode([reply, [envelope.event for envelope in seen]])
            failed = isinstance(answer, TurnResult) and answer.failed
            assert reply.status == ("failed" if failed or answer is raises else "complete")
            if isinstance(answer, TurnResult) and answer.data:
                assert reply.data == {CLEAN: [CLEAN, 1, None]}
            deltas = [envelope.event.text for envelope in seen if hasattr(envelope.event, "text")]
            assert deltas[:3] == [CLEAN] * 3
            assert await runtime.conversation("k").history()


async def test_a_hook_that_raises_them_is_noted(start, path, sql):
    async def hook(session_id, platform):
        raise ValueError(HALF)

    with trio.fail_after(SECONDS):
        async with start(hooks={FINALIZE: [hook]}) as runtime:
            await runtime.ask("k", "hello")
            await runtime.conversation("k").close(reason=HALF)
            await runtime.wait_hooks()
    assert sql("SELECT reason FROM boundaries ORDER BY id LIMIT 1") == [[CLEAN]]


def test_what_can_be_encoded_stays_the_same_object():
    for value in ({"a": ["ü", 1]}, TextDelta("ü"), object()):
        assert encodable(value) is value
    assert encodable({HALF: (HALF,)}) == {CLEAN: [CLEAN]}
    assert encodable(TextDelta(HALF, restart=True)) == TextDelta(CLEAN, restart=True)
