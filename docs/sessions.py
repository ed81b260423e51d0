"""Writes the sessions of the README: each is played with the real programs, and shown as it went.

    python docs/sessions.py            writes them into README.md
    python docs/sessions.py --check    fails where README.md shows something else

Models and platforms are those of `hermes.testing`, on this machine.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from hermes.messages import ToolCall
from hermes.testing import ModelAnswer, open_model
from hermes.testing.telegram import TOKEN, open_telegram

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- sessions: made by docs/sessions.py -->\n", "<!-- end of sessions -->\n"
SECONDS = 60
# What is another time otherwise: session ids and moments.
CHANGING = re.compile(r"\d{8}_\d{6}_[0-9a-f]{8}|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?")


def shown(command: str, lines: str, output: str) -> str:
    """A pipe as a person would type it, and what came out."""
    said = "".join(f"{line}\\n" for line in lines.splitlines())
    typed = f"printf '{said}' | {command}" if lines else command
    return f"```console\n$ {typed}\n{output.rstrip()}\n```\n"


async def play(folder: Path, command: str, lines: str, **env: str) -> str:
    """Run `python …` in the folder, with these lines as its input."""
    program, *arguments = command.split()[1:]
    start = [program, *arguments] if program == "-m" else [str(ROOT / program), *arguments]
    done = await trio.run_process(
        [sys.executable, *start],
        stdin=lines.encode(),
        capture_stdout=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )
    return shown(command, lines, done.stdout.decode())


async def bot(folder: Path) -> str:
    command = "python examples/bot.py"
    return await play(folder, command, "hello\nhow are you today?\n/undo\nbye\n")


async def standalone(folder: Path) -> str:
    command = "python -m hermes.run --db chat.db"
    first = await play(folder, command, "remember that bees dance\n/title Of bees\n/new\n")
    second = await play(folder, command, "what did I say about bees?\n/sessions\n")
    return first + "\n" + second


async def tools(folder: Path) -> str:
    script = [
        ModelAnswer(calls=[ToolCall("1", "price", '{"bird": "heron"}')]),
        "A heron costs 12.50 francs.",
        ModelAnswer(calls=[ToolCall("2", "order", '{"bird": "heron", "number": 2}')]),
        "Please allow the order, and it is made.",
        ModelAnswer(calls=[ToolCall("3", "order", '{"bird": "heron", "number": 2}')]),
        "Two herons are on their way.",
    ]
    async with open_model(script) as model:
        return await play(
            folder,
            "python examples/bot_with_tools.py",
            "what does a heron cost?\ntwo of them, please\n/approve\n",
            OPENAI_BASE_URL=model.openai_url,
            OPENAI_API_KEY="sk-none",
        )


async def telegram(folder: Path) -> str:
    async with open_telegram() as server:
        process = await trio.lowlevel.open_process(
            [sys.executable, str(ROOT / "examples" / "telegram_bot.py")],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TELEGRAM_TOKEN": TOKEN,
                "TELEGRAM_API": server.url,
            },
            stderr=subprocess.DEVNULL,
        )
        lines = []
        try:
            for text in ("hello", "/title Birds", "good night"):
                server.say(7, text)
                lines.append(f"you: {text}")
                wanted = sum(line.startswith("bot:") for line in lines) + 1
                await server.wait_until(lambda n=wanted: len(server.rooms[7].texts) >= n)
                lines.append(f"bot: {server.rooms[7].texts[-1]}")
        finally:
            process.terminate()
            await process.wait()
    return "```text\n" + "\n".join(lines) + "\n```\n"


async def migrating(folder: Path) -> str:
    writer = ROOT / "tests" / "integration" / "agent_homes.py"
    spec = importlib.util.spec_from_file_location("homes", writer)
    homes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(homes)
    home = homes.Home(folder / ".hermes")
    home.session("20260102_030405_0a1b2c3d", "What time is it?", "Noon.", source="telegram")
    home.routing({"agent:main:telegram:dm:1": home.entry(1, "20260102_030405_0a1b2c3d")})
    home.close()
    done = await trio.run_process(
        [sys.executable, "-m", "hermes.store", "import", ".hermes", "--db", "chat.db"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_stdout=True,
    )
    output = done.stdout.decode().replace(str(folder), "/home/you")
    return shown("python -m hermes.store import ~/.hermes --db chat.db", "", output)


SESSIONS: dict[str, Callable[[Path], Awaitable[str]]] = {
    "A bot in 20 lines, [examples/bot.py](examples/bot.py):": bot,
    "The standalone bot, with the agent that needs no model; the second start knows the first:": (
        standalone
    ),
    "A bot with a model and tools, [examples/bot_with_tools.py](examples/bot_with_tools.py); an "
    "order is asked for first, and made once:": tools,
    "A bot on Telegram, [examples/telegram_bot.py](examples/telegram_bot.py), as its chat shows "
    "it:": telegram,
    "Moving from hermes-agent, as often as you like ([docs/migrating.md](docs/migrating.md)):": (
        migrating
    ),
}


async def sessions() -> str:
    """All of them, as Markdown."""
    parts = []
    for title, session in SESSIONS.items():
        with tempfile.TemporaryDirectory() as folder, trio.fail_after(SECONDS):
            parts.append(f"{title}\n\n{await session(Path(folder))}")
    return "\n".join(parts)


def steady(text: str) -> list[str]:
    """What must not change: the lines, though a notice may come before or after an answer."""
    return sorted(CHANGING.sub("…", text).splitlines())


def main() -> int:
    text = README.read_text()
    head, rest = text.split(BEGIN)
    before, tail = rest.split(END)
    now = "\n" + trio.run(sessions) + "\n"
    if "--check" in sys.argv[1:]:
        if steady(before) != steady(now):
            sys.stderr.write(f"README.md shows other sessions than these:\n{now}")
            return 1
        return 0
    README.write_text(head + BEGIN + now + END + tail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
