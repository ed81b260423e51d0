"""`texts=`: everything that Hermes says to users comes from one table."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
import trio

from hermes import Config, ContextOverflow, Inbound, Source, Texts, TurnResult, open_runtime
from hermes.actors.commands import COMMANDS
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import HermesError, StoreBusy, StoreError
from hermes.testing import DeterministicCompressor, MemoryAdapter, forever
from hermes.texts import ENGLISH
from tests.support.chat import ALICE, CONSOLE, MALLORY, RateLimit, access_for
from tests.support.compression import ScriptedCompressor, failing
from tests.support.conversations import scripted


def marked(name, text):
    """A sentence that shows on each of its lines that it comes from the table."""
    if name.startswith("help_"):
        return text.replace(": ", ": «") + "»"
    return "\n".join(f"«{line}»" for line in text.split("\n"))


MARKED = Texts(
    **{name: marked(name, text) for name, text in msgspec.structs.asdict(ENGLISH).items()}
)


def unmarked(texts):
    """The lines that do not come from the table."""
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if not line.startswith("«") and not line.endswith("»")]


SAID = (
    "/help", "/sessions", "/title", "/undo", "/retry", "/branch", "/stop", "/status",
    "/usage", "/whoami", "/pair", "/unpair telegram 1", "/approve", "/deny 7", "/queue", "/steer",
    "/background", "/approve x", "/compress", "/resume nowhere", "/title " + "x" * 500,
)  # fmt: skip
"""Commands for an empty conversation, a full one, and one that was compressed."""
SAID_LATER = ("/title Plan", "/title", "/sessions", "/branch", "/resume 2", "/undo", "/undo 2")


@pytest.mark.parametrize("compressor", [None, DeterministicCompressor()], ids=["without", "with"])
async def test_every_answer_to_a_command_comes_from_the_table(start, compressor):
    async with start(texts=MARKED, compressor=compressor) as runtime:
        replies = [await runtime.ask("k", text) for text in SAID]
        for number in range(30):
            await runtime.ask("k", f"{number} " * 200)
        replies += [await runtime.ask("k", text) for text in SAID + SAID_LATER]
        replies += [await runtime.ask("k", text) for text in ("/new", "/new A title")]
    assert replies[0].text.count("«") == len(COMMANDS) - 2  # not those of operators
    assert unmarked(reply.text for reply in replies if reply.status == "command") == []


RESULTS = {
    "failed": TurnResult(failed=True, error="boom"),
    "no reason": TurnResult(failed=True),
    "overflow": ContextOverflow("too long"),
    "raised": RuntimeError("boom"),
    "wrong": 7,
    "not started": TurnResult(interrupted=True, api_calls=0),
    "partial": TurnResult(partial=True, api_calls=5, error="boom"),
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
        assert reply.text
        assert unmarked([reply.text]) == []


async def test_a_failed_compression_is_reported_in_words_of_the_table(small):
    compressor = ScriptedCompressor(failing(RuntimeError("boom")))
    async with small(compressor=compressor, texts=MARKED) as runtime:
        for number in range(12):
            await runtime.ask("k", f"{number} " * 40)
        assert unmarked([(await runtime.ask("k", "/compress")).text]) == []
        status = (await runtime.ask("k", "/status")).text
        assert unmarked([status]) == []
        assert "««something went wrong" not in status  # only the note inside of a sentence
        assert "(«the last compression failed" in status


async def test_a_rejected_message_is_refused_in_words_of_the_table(start):
    agent, build = scripted(forever())
    async with start(build_agent=build, texts=MARKED, config=Config(when_busy="reject")) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "first")
            while not agent.turns:
                await trio.lowlevel.checkpoint()
            assert (await runtime.ask("k", "second")).text == MARKED.busy
            assert unmarked([(await runtime.ask("k", "/stop")).text]) == []


async def test_an_unknown_command_is_refused_in_words_of_the_table(start):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter], texts=MARKED) as runtime:
        source = Source("memory", chat_id="c")
        await runtime.submit(Inbound("k", "e", "/nonsense", source, command=True))
        await adapter.wait_sent(1)
    assert adapter.texts == [MARKED.unknown_command.format(command="/nonsense")]


SHOWN = {
    "a wrong value": ValueError("the title is taken"),
    "a busy store": StoreBusy("another process holds the database"),
}
HIDDEN = {
    "an error of SQLite": StoreError("SQLError: no such table"),
    "an error of Hermes": HermesError("an invariant does not hold"),
    "a wrong encoding": UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
}


@pytest.mark.parametrize("name", [*SHOWN, *HIDDEN])
async def test_users_see_the_errors_that_were_written_for_them(start_proxy, name, caplog):
    error = (SHOWN | HIDDEN)[name]

    async def set_title(real, *args, **options):
        raise error

    async with start_proxy(set_title=set_title) as runtime:
        await runtime.ask("k", "hello")
        reply = await runtime.ask("k", "/title Plan")
    if name in SHOWN:
        assert reply.text == ENGLISH.command_failed.format(error=error)
        return
    reference = re.search(r"reference (\w{6})", reply.text)[1]
    assert reply.text == ENGLISH.command_unexpected.format(reference=reference)
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
    assert unmarked([*refusals, *answers, *sent]) == []
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
def test_every_host_refuses_texts_that_cannot_be_used(path, ask):
    with pytest.raises(ValueError, match=r"^texts\.stopped: unknown placeholder \{who\}"):
        ask(path, agent=fail, texts=Texts(stopped="Angehalten von {who}."))
    assert not path.exists()
