"""SIGHUP and `hermes reload`: a running bot reads its configuration again."""

from __future__ import annotations

import functools
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from hermes.cli.main import main
from hermes.run.reload import changes, request_reload, with_changes
from hermes.settings import load
from hermes.testing import LoopbackModel, open_model
from hermes.testing.telegram import TOKEN, LoopbackTelegram, open_telegram
from tests.support.tty import END, Tty

ROOT = Path(__file__).parents[2]
TEXT = """
[agent]
kind = 'openai'
model = 'MODEL'
base_url = 'URL'
key = 'env:HERMES_TEST_KEY'
[titles]
enabled = false
"""
TELEGRAM = "[agent]\nkind = 'offline'\n[telegram]\ntoken = 'env:T'\nusers = [1]\n"


async def line_of(stream, buffer):
    while b"\n" not in buffer:
        chunk = await stream.receive_some()
        assert chunk, buffer
        buffer += chunk
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return line.decode()


async def test_a_running_bot_uses_the_new_model(tmp_path, capsys):
    file, path = tmp_path / "hermes.toml", tmp_path / "state.db"
    async with open_model(lambda _: "yes") as model, trio.open_nursery() as nursery:
        text = TEXT.replace("URL", model.openai_url)
        file.write_text(text.replace("MODEL", "one"))
        command = [sys.executable, "-m", "hermes.run", "--config", str(file), "--db", str(path)]
        environment = {**os.environ, "HERMES_TEST_KEY": "sk-secret-of-the-test"}
        start = functools.partial(
            trio.run_process, command, stdin=-1, stdout=-1, check=False, env=environment
        )
        process = await nursery.start(start)
        buffer = bytearray()
        with trio.fail_after(60):
            for name, expected in (
                ("one", None),
                ("two", ("Changed: agent.model.", 0)),
                ("two", ("Nothing has changed.", 0)),
            ):
                if expected is not None:
                    file.write_text(text.replace("MODEL", name))
                    assert await trio.to_thread.run_sync(request_reload, path) == expected
                await process.stdin.send_all(b"hello\n")
                assert await line_of(process.stdout, buffer) == "yes"
                assert model.requests[-1].json["model"] == name
            file.write_text(text + "[log]\nlevel = 'loud'\n[runtime]\nmax_queued = 0\n")
            report, code = await trio.to_thread.run_sync(request_reload, path)
            assert code == 1
            first, *lines = report.splitlines()
            assert first == f"The configuration {file} cannot be used; nothing was changed:"
            assert [line.split(": ")[1] for line in lines] == ["log.level", "runtime.max_queued"]
            file.write_text(text.replace("MODEL", "3") + "[runtime]\nmax_queued = 7\n")
            options = ["reload", "--config", str(file), "--db", str(path)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HERMES_TEST_KEY", "sk-secret-of-the-test")
                assert await trio.to_thread.run_sync(main, options) == 0
            assert capsys.readouterr().out == (
                "Changed: agent.model.\nA restart is needed for: runtime.max_queued.\n"
            )
            await process.stdin.aclose()
            await process.wait()
    assert process.returncode == 0
    assert not (tmp_path / "state.db.reload").exists()


def test_without_a_bot_there_is_nothing_to_reload(tmp_path):
    for path in (tmp_path / "state.db", tmp_path / "nowhere" / "state.db"):
        assert request_reload(path) == (f"Hermes is not running on {path}.", 1)


def test_a_chat_ends_when_its_terminal_is_closed(tmp_path):
    path = tmp_path / "state.db"
    command = [sys.executable, "-m", "hermes.run", "--agent", "offline", "--db", str(path)]
    with Tty(command) as tty:
        tty.until("Ctrl-D exits")
        tty.signal(signal.SIGHUP)  # the terminal is still there: a reload
        tty.type("hello\r")
        tty.until("You said: hello")
        for end in ("ours", "theirs"):  # the kernel sends the signal now
            os.dup2(os.open(os.devnull, os.O_RDWR), getattr(tty, end))
        # Not 0 if the terminal could not be restored: nothing can be written to it any more.
        assert tty.process.wait(30) in {0, 1, os.EX_IOERR}


def test_access_and_log_level_change_at_run_time_but_not_the_token():
    running = load(TELEGRAM)
    wanted = load(
        "[agent]\nkind = 'offline'\n[telegram]\ntoken = 'env:U'\nusers = [1, 2]\n"
        "operators = [3]\n[log]\nlevel = 'debug'\nform = 'json'\n"
    )
    settings = with_changes(running, wanted, agents=False)
    assert changes(running, settings) == ["log.level", "telegram.operators", "telegram.users"]
    assert changes(settings, wanted) == ["log.form", "telegram.token"]


@attrs.frozen
class Bot:
    """A bot on Telegram in another process."""

    telegram: LoopbackTelegram
    model: LoopbackModel
    folder: Path

    def write(self, users, *lines):
        agent = TEXT.replace("URL", self.model.openai_url).replace("MODEL", "m")
        platform = f"[telegram]\ntoken = 'env:T'\nbase_url = '{self.telegram.url}'\npairing = false"
        text = "\n".join([agent, platform, f"users = {users}", *lines])
        (self.folder / "hermes.toml").write_text(text)

    async def reload(self, users, *lines):
        self.write(users, *lines)
        return await trio.to_thread.run_sync(request_reload, self.folder / "state.db")

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def said_to(self, user):
        return "".join(self.telegram.chats[user].texts)

    async def say(self, user, text, *, until):
        self.telegram.say(user, text)
        await self.telegram.wait_until(lambda: until in self.said_to(user))

    @asynccontextmanager
    async def running(self):
        command = [sys.executable, "-m", "hermes", "run", "--config", "hermes.toml"]
        environment = {**os.environ, "HERMES_TEST_KEY": "sk-secret-of-the-test", "T": TOKEN}
        environment["PYTHONPATH"] = str(ROOT)
        with (self.folder / "log").open("wb") as log, trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                start = functools.partial(
                    trio.run_process, [*command, "--db", "state.db"], stdin=b"", stderr=log,
                    env=environment, cwd=self.folder,
                )  # fmt: skip
                process = await nursery.start(start)
                yield
                process.terminate()


@pytest.fixture
async def bot(tmp_path):
    answers = (f"answer {number}." for number in range(9))
    async with open_model(lambda _: next(answers)) as model, open_telegram() as telegram:
        yield Bot(telegram, model, tmp_path)


async def test_access_and_the_log_level_change_in_a_running_bot(bot):
    bot.write([7], "[log]", "level = 'error'")
    async with bot.running():
        await bot.say(7, "hello", until="answer 0.")
        assert bot.log == ""
        report = await bot.reload([8], "[log]", "level = 'info'")
        assert report == ("Changed: log.level, telegram.users.", 0)
        bot.telegram.say(7, "may I still?")
        await bot.say(8, "hello", until="answer 1.")
    assert "answer 1." not in bot.said_to(7)
    assert bot.log.count(" hermes.turns turn ") == 1
    assert "Changed: log.level, telegram.users." in bot.log


async def test_prices_and_budgets_change_in_a_running_bot(bot):
    price = ["[agent.prices.m]", "output = 1000000", "[agent.budgets]"]
    bot.write([7])
    async with bot.running():
        await bot.say(7, "hello", until="answer 0.")
        text, code = await bot.reload([7, 8], "[agent.budgets]", "day = 0.5")
        first, problem = text.splitlines()
        file = bot.folder / "hermes.toml"
        assert first == f"The configuration {file} cannot be used; nothing was changed:"
        assert (code, "agent.model: budgets cannot be enforced" in problem) == (1, True)
        report, code = await bot.reload([7], *price, "day = 0.5")
        names = "agent.budgets.day, agent.prices.m.input, agent.prices.m.output"
        assert (report, code) == (f"Changed: {names}.", 0)
        await bot.say(7, "this one costs something", until="answer 1.")
        await bot.say(7, "and this one too much", until="the daily budget is used up")
        assert await bot.reload([7], *price, "day = 500") == ("Changed: agent.budgets.day.", 0)
        await bot.say(7, "now?", until="answer 2.")
    assert len(bot.model.requests) == 3


def test_a_reload_is_reported_on_the_screen_of_a_chat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "hermes.toml"
    file.write_text("[agent]\nkind = 'offline'\n")
    command = [sys.executable, "-m", "hermes", "--config", "hermes.toml", "--db", "state.db"]
    with Tty(command, columns=250, PYTHONPATH=str(ROOT)) as tty:
        tty.until("\n>")
        for number in (1, 2):  # the same report is shown again
            file.write_text("[agent]\nkind = 'ofline'\n[log]\nlevel = 'loud'\n")
            tty.signal(signal.SIGHUP)
            first = f"The configuration {file} cannot be used; nothing was changed:\n"
            shown = tty.until(lambda text, count=number: text.count("line 4: log.level") == count)
            assert shown.count(f"{first}line 2: agent.kind: expected one of") == number
        file.write_text("[log]\nlevel = 'error'\n[runtime]\nmax_queued = 7\n")
        tty.signal(signal.SIGHUP)
        tty.until(
            f"The configuration {file} was read again. Changed: log.level. "
            "A restart is needed for: runtime.max_queued.\n"
        )
        tty.type(END)
        assert tty.wait() == 0
    assert (
        "A restart is needed for: runtime.max_queued."
        not in (tmp_path / "state.db.log").read_text()
    )


def test_a_configuration_that_was_written_since_the_start_needs_a_restart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Tty(
        [sys.executable, "-m", "hermes", "--db", "s.db"], columns=250, PYTHONPATH=str(ROOT)
    ) as tty:
        tty.until("\n>")
        (tmp_path / "hermes.toml").write_text(TEXT.replace("URL", "http://127.0.0.1:1"))
        (tmp_path / "key").write_text("sk-secret-of-the-test")
        tty.signal(signal.SIGHUP)
        tty.until("agent.key: the environment variable HERMES_TEST_KEY is not set")
        text = (tmp_path / "hermes.toml").read_text().replace("env:HERMES_TEST_KEY", "file:key")
        (tmp_path / "hermes.toml").write_text(text)
        tty.signal(signal.SIGHUP)
        tty.until("was read again. A restart is needed for: agent.base_url, agent.key, agent.kind")
        tty.type(END)
        assert tty.wait() == 0
