"""`texts=`: everything that Hermes says to users comes from one table."""

from __future__ import annotations

import asyncio
import re

import pytest
import trio

from hermes import (
    CompressorFailed,
    Config,
    ContextOverflow,
    Draining,
    Inbound,
    Overloaded,
    Source,
    StoreFull,
    Texts,
    TitleTaken,
    TitleTooLong,
    TurnResult,
    UnknownSession,
    open_runtime,
)
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import HermesError, StoreBusy, StoreError
from hermes.messages import Skipped
from hermes.testing import DeterministicCompressor, MemoryAdapter, forever, inspect
from hermes.texts import ENGLISH
from tests.support.chat import ALICE, CONSOLE, MALLORY, RateLimit, access_for
from tests.support.compression import SMALL, ScriptedCompressor, at_length, failing, question, talk
from tests.support.conversations import scripted
from tests.support.marked_texts import MARKED, foreign_words, names_in

CHAT = Source("memory", chat_id="c", user_id="u")

SAID = (
    "/help", "/sessions", "/title", "/undo", "/retry", "/branch", "/stop", "/status",
    "/usage", "/whoami", "/pair", "/unpair telegram 1", "/approve", "/deny 7", "/queue", "/steer",
    "/background", "/approve zebra", "/approve always", "/deny always zebra", "/undo zebra",
    "/compress", "/compress here 1",
    "/search zebra", "/search", "/delete", "/delete nowhere", "/export", "/export nowhere", "/quit",
    "/model", "/model zebra", "/tools",
    "/resume nowhere", "/title " + "x" * 500, "/new " + "x" * 500,
)  # fmt: skip
"""Commands for an empty conversation, a full one, and one that was compressed."""
SAID_LATER = (
    "/title Plan", "/title", "/sessions", "/branch", "/title Plan", "/branch Plan", "/new Plan",
    "/resume 2", "/resume Plan", "/resume 2", "/undo", "/undo 2", "/background zebra", "/new",
    "/new Oak", "/status", "/export 1", "/delete 1", "/delete Plan yes", "/delete yes",
)  # fmt: skip


@pytest.mark.parametrize("compressor", [None, DeterministicCompressor()], ids=["without", "with"])
async def test_every_answer_to_a_command_comes_from_the_table(start, compressor):
    adapter = MemoryAdapter()
    async with start(texts=MARKED, compressor=compressor, adapters=[adapter]) as runtime:

        async def say(*texts):
            return [await runtime.ask("k", text, source=CHAT) for text in texts]

        replies = await say(*SAID)
        replies += await say(*[f"{number} zebra " * 100 for number in range(30)])
        replies += await say(*SAID, *SAID_LATER)
        await inspect(runtime).wait_sent()
    said = ("echo k u memory zebra zebr ze z yes Plan Oak nowhere", "x" * 500, "x" * 100)
    shown = [reply.text for reply in replies]
    assert foreign_words([*shown, *adapter.texts], *said) == set()
    assert {"title_taken", "title_too_long", "not_compressed", "usage"} <= names_in(shown)


RESULTS = {
    "failed": TurnResult(failed=True, error="zebra"),
    "no reason": TurnResult(failed=True),
    "overflow": ContextOverflow("too long"),
    "raised": RuntimeError("boom"),
    "wrong": 7,
    "not started": TurnResult(interrupted=True, api_calls=0),
    "partial": TurnResult(partial=True, api_calls=5, error="zebra"),
    "an error": TurnResult(error="zebra"),
    "an error without a call": TurnResult(error="zebra", api_calls=0),
    "no text": TurnResult(api_calls=2),
    "nothing": TurnResult(api_calls=0),
    "slow": forever(),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_every_notice_about_a_turn_comes_from_the_table(start, name, autojump_clock):
    _, build = scripted(RESULTS[name])
    config = Config(turn_timeout=5.0)
    async with start(build_agent=build, texts=MARKED, config=config) as runtime:
        reply = await runtime.ask("k", "hello")
        assert foreign_words([reply.text], "zebra") == set()
        assert names_in([reply.text])
        assert ("zebra" in reply.text) == ("zebra" in str(RESULTS[name]))


async def test_the_error_of_an_agent_is_redacted_and_cut(start):
    _, build = scripted(TurnResult(error="my secret " + "zebra " * 100))
    redact = lambda text: text.replace("secret", "***")  # noqa: E731
    async with start(build_agent=build, redact=redact) as runtime:
        text = (await runtime.ask("k", "hello")).text
    assert text == ENGLISH.failed.format(error=("my *** " + "zebra " * 100)[:300])


# Compression


COMPRESSORS = {
    "raises": failing(RuntimeError("boom")),
    "reports": failing(CompressorFailed("zebra")),
    "hangs": forever(),
    "writes too much": at_length,
}


@pytest.mark.parametrize("name", COMPRESSORS)
async def test_every_notice_about_a_compression_comes_from_the_table(small, name, autojump_clock):
    compressor = ScriptedCompressor(COMPRESSORS[name])
    adapter = MemoryAdapter()
    async with small(compressor=compressor, texts=MARKED, adapters=[adapter]) as runtime:
        for number in range(14):
            await runtime.ask("k", question(number), source=CHAT)
        change = await runtime.conversation("k").compress()
        asked = [await runtime.ask("k", text) for text in ("/compress", "/status")]
        await inspect(runtime).wait_sent()
    shown = [change.detail, *[reply.text for reply in asked]]
    said = ("echo zebra cold", question(1))
    numbers = [question(number) for number in range(14)]
    assert foreign_words([*shown, *adapter.texts], *said, *numbers) == set()
    assert len(names_in(shown)) > 3


REFUSALS = {
    "compressed": Skipped("already compressed", winner="zebra", compressed=True),
    "leased": Skipped("the lease was lost", holder="zebra"),
    "rewritten": Skipped("the transcript was rewritten meanwhile"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_summary_that_the_store_refuses_is_explained_from_the_table(start_proxy, name):
    async def rotate(real, rotation):
        return REFUSALS[name]

    options = {"compressor": ScriptedCompressor(), "config": Config(compression=SMALL)}
    async with start_proxy(texts=MARKED, rotate=rotate, **options) as runtime:
        await talk(runtime)
        text = (await runtime.ask("k", "/compress")).text
    assert foreign_words([text]) == set()


async def test_a_request_that_was_tried_meanwhile_is_one_sentence(small):
    compressor = ScriptedCompressor(failing(CompressorFailed("zebra")))
    changes = []
    async with small(compressor=compressor, texts=MARKED) as runtime:
        await talk(runtime)

        async def compress():
            changes.append(await runtime.conversation("k").compress())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compress)
            nursery.start_soon(compress)
    assert sorted(change.detail for change in changes) == [
        "«compression_failed zebra»",
        "«not_compressed «tried_by_request zebra»»",
    ]


async def test_the_verbs_say_from_the_table_why_nothing_was_changed(start):
    async with start(texts=MARKED) as runtime:
        fresh, used = runtime.conversation("fresh"), runtime.conversation("used")
        session_id = (await used.ask("hello")).session_id
        changes = [
            await fresh.undo(), await fresh.compress(), await fresh.branch(), await fresh.close(),
            await fresh.branch(to="other"), await used.compress(), await used.switch(session_id),
        ]  # fmt: skip
        await used.undo()
        changes.append(await used.undo())
    assert [change.changed for change in changes] == [False] * 8
    assert foreign_words([change.detail for change in changes]) == set()


# Messages that are refused


async def test_a_rejected_message_is_refused_in_words_of_the_table(start):
    agent, build = scripted(forever())
    async with start(build_agent=build, texts=MARKED, config=Config(when_busy="reject")) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "first")
            while not agent.turns:
                await trio.lowlevel.checkpoint()
            assert (await runtime.ask("k", "second")).text == MARKED.busy
            assert foreign_words([(await runtime.ask("k", "/stop")).text]) == set()


async def test_an_unknown_command_is_refused_in_words_of_the_table(start):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter], texts=MARKED) as runtime:
        source = Source("memory", chat_id="c")
        await runtime.submit(Inbound("k", "e", "/nonsense", source, command=True))
        await adapter.wait_sent(1)
    assert adapter.texts == [MARKED.unknown_command.format(command="/nonsense")]


# Commands that fail

SHOWN = {
    "a taken title": (TitleTaken("Plan", "s1"), "«title_taken Plan Plan»"),
    "a taken number": (TitleTaken("7", "s1"), "«title_taken 7 s1»"),
    "a long title": (TitleTooLong(101, 100), "«title_too_long 101 100»"),
    "a session that is gone": (UnknownSession("no s1"), "«command_failed «session_changed»»"),
    "a busy store": (StoreBusy("another process"), "«command_failed «store_busy»»"),
    "a full disk": (StoreFull("no space"), "«command_failed «store_full»»"),
    "a full queue": (Overloaded("100 wait"), "«command_failed «too_much_waiting»»"),
    "the end": (Draining("over"), "«command_failed «shutting_down»»"),
}
HIDDEN = {
    "an error of SQLite": StoreError("SQLError: no such table"),
    "an error of Hermes": HermesError("an invariant does not hold"),
    "a wrong encoding": UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "a wrong value": ValueError("invalid literal for int() with base 10: 'x'"),
    "another error": KeyError("zebra"),
    "a group": ExceptionGroup("several", [RuntimeError("boom"), TypeError("bang")]),
}


@pytest.mark.parametrize("name", [*SHOWN, *HIDDEN])
@pytest.mark.parametrize("command", ["/title Plan", "/new Plan"])
async def test_users_see_no_error_but_those_of_the_table(start_proxy, name, command, caplog):
    error, text = SHOWN.get(name) or (HIDDEN[name], None)

    async def fail(real, *args, **options):
        raise error

    async with start_proxy(set_title=fail, new_session=fail, texts=MARKED) as runtime:
        await runtime.ask("k", "hello")
        reply = await runtime.ask("k", command)
        assert (await runtime.ask("k", "still here?")).status == "complete"
    if text is not None:
        assert reply.text == text
        return
    reference = re.fullmatch(r"«command_unexpected (\w{6})»", reply.text)[1]
    [record] = [each for each in caplog.records if reference in each.getMessage()]
    assert record.exc_info[1] is error


async def test_access_control_and_pairing_speak_from_the_table(chat):
    access = access_for(users=["1"], rates=RateLimit(per_minute=1, burst=3))
    async with chat(access, texts=MARKED) as here:
        refusals = [await here.refused(MALLORY)]
        code = await here.code(MALLORY, number=1)
        asked = ("/pair", "/pair 0000-0000", f"/pair {code}", "/pair", "/unpair telegram 666")
        answers = [await here.say(CONSOLE, text) for text in (*asked, "/unpair telegram 8")]
        answers += [await here.say(CONSOLE, "/pair 0000-0000") for _ in range(6)]
        await here.flood(ALICE, 3, "/whoami")
        refusals.append(await here.refused(ALICE, "hello"))
        sent = here.adapter.texts
    said = ("telegram console agent main bot dm", code)
    assert foreign_words([*refusals, *answers, *sent], *said) == set()
    assert MARKED.too_fast in refusals
    assert MARKED.pairing_welcome in sent


# Hosts


async def fail(turn):
    raise RuntimeError("boom")


def on_trio(path, **options):
    async def main():
        async with open_runtime(path, **options) as runtime:
            return runtime.texts, await runtime.ask("k", "hello")

    return trio.run(main)


def in_threads(path, **options):
    with start_runtime(path, **options) as runtime:
        return runtime.texts, runtime.ask("k", "hello")


def on_asyncio(path, **options):
    async def main():
        async with open_runtime_asyncio(path, **options) as runtime:
            return runtime.texts, await runtime.ask("k", "hello")

    return asyncio.run(main())


every_host = pytest.mark.parametrize("ask", [on_trio, in_threads, on_asyncio])


@every_host
def test_every_host_takes_texts_and_shows_no_exception(path, ask, caplog):
    german = Texts(unexpected="Da ging etwas schief ({reference}).")
    texts, reply = ask(path, agent=fail, texts=german)
    assert texts == german
    assert reply.text == f"Da ging etwas schief ({reply.reference})."
    assert reply.error == f"RuntimeError (reference {reply.reference})"
    assert f"reference {reply.reference}" in caplog.text


@every_host
@pytest.mark.sqlite_only("no file is created")
def test_every_host_refuses_texts_that_cannot_be_used(path, ask):
    with pytest.raises(ValueError, match=r"^texts\.stopped: unknown placeholder \{who\}"):
        ask(path, agent=fail, texts=Texts(stopped="Angehalten von {who}."))
    with pytest.raises(ValueError, match=r"^texts\.unexpected: the text is empty"):
        ask(path, agent=fail, texts=Texts(unexpected=""))
    assert not path.exists()
