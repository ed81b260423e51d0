"""The Telegram adapter with problems: tokens, conflicts, outages."""

from __future__ import annotations

import logging
import traceback

import pytest
import trio

from hermes import AccessPolicy, Config, open_runtime
from hermes.adapters.telegram import Telegram
from hermes.adapters.telegram.api import BotApi
from hermes.messages import Source
from hermes.redaction.keys import Secret
from hermes.session_keys import session_key
from hermes.testing.telegram import TOKEN, Fault, open_telegram
from tests.support.telegram_bot import (
    NO_BURSTS,
    echo,
    running_bot,
    texts,
    wait_confirmed,
    wait_problem,
    wait_texts,
)


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


async def test_a_revoked_token_is_reported_in_one_sentence_and_the_runtime_continues(
    server, path, caplog
):
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, group_policy=NO_BURSTS) as telegram,
        open_runtime(
            path, agent=echo, adapters=[telegram], access=AccessPolicy.everyone()
        ) as runtime,
    ):
        server.revoke()
        with trio.fail_after(5):
            await telegram.run(runtime)
        assert "BotFather" in telegram.problem
        assert (await runtime.ask("somebody else", "hello")).text == "You said: hello"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert line == telegram.problem
    assert line.count("\n") == 0


async def test_a_reply_waits_for_a_new_token(server, path):
    """Nothing is lost while the token is invalid; with a new one it is sent, without a mark."""

    async def talk(turn):
        server.revoke()
        return "worth waiting for"

    async with running_bot(server, path, talk, config=Config(drain_timeout=0.1)) as telegram:
        server.say(7, "go")
        await wait_problem(telegram)
    assert texts(server, 7) == []
    server.token = TOKEN
    async with running_bot(server, path):
        assert await wait_texts(server, 7, 1) == ["worth waiting for"]


async def test_another_program_with_the_same_token_is_reported_and_survived(server, path, caplog):
    other = BotApi(Secret(TOKEN), server.url)
    async with running_bot(server, path) as telegram:
        await server.wait_until(lambda: server.counts["getUpdates"])
        await other.call("getUpdates", {"timeout": 0})
        await wait_problem(telegram)
        assert telegram.problem.startswith("Another program is receiving")
        server.say(7, "hello")
        await wait_texts(server, 7, 1)
        assert telegram.problem is None
    await other.aclose()
    assert caplog.text.count("Another program is receiving") == 1


async def test_outages_are_survived(server, path, caplog):
    await server.go_down()
    async with running_bot(server, path) as telegram:
        await wait_problem(telegram)
        server.say(7, "hello")
        await server.come_up()
        server.fail(Fault("502", method="getUpdates"), Fault("garbage", method="getUpdates"))
        assert await wait_texts(server, 7, 1) == ["You said: hello"]
        await wait_confirmed(server)
    assert caplog.text.count("Telegram cannot be reached") == 1
    assert "receiving messages from Telegram again" in caplog.text


async def test_the_token_appears_nowhere(server, path, caplog, tmp_path):
    caplog.set_level(0)
    seen = []

    async def talk(turn):
        seen.append(repr(turn.history) + turn.text)
        raise RuntimeError("broken")

    faults = [
        Fault("reset"),
        Fault("502", taken=True),
        Fault("garbage"),
        Fault("reset", taken=True),
    ]
    server.fail(*faults)
    async with running_bot(server, path, talk) as telegram:
        server.say(7, "hello")
        await wait_texts(server, 7, 1)
        server.revoke()
        server.say(7, "x")
        await wait_problem(telegram)
        seen += [repr(telegram), str(telegram.problem), repr(vars(telegram)), *texts(server, 7)]
    for record in caplog.records:
        seen.append(record.getMessage())
        if record.exc_info and record.exc_info[1]:
            seen += traceback.TracebackException.from_exception(
                record.exc_info[1], capture_locals=True
            ).format()
    seen += [file.read_bytes().decode(errors="replace") for file in tmp_path.glob("state.db*")]
    assert TOKEN.partition(":")[2] not in "".join(seen)
    assert len(caplog.records) > 10


def test_the_account_is_the_id_of_the_bot_and_the_key_has_no_user_name():
    telegram = Telegram(Secret(TOKEN))
    assert (telegram.platform, telegram.account) == ("telegram", TOKEN.partition(":")[0])
    source = Source("telegram", telegram.account, "7", user_id="7", user_name="Anna")
    assert session_key(source) == "agent:main:telegram:dm:7"
