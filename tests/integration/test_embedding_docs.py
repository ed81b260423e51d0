"""What docs/hosting.md says about threads, its tests, and that docs/configuring.md is complete."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
import trio

from hermes import (
    AgentSpec,
    CompressionConfig,
    Config,
    Source,
    Summary,
    TurnResult,
    open_runtime,
)
from hermes.agents import asyncio_agent, blocking_agent
from hermes.embed import RuntimeOptions, open_runtime_asyncio, start_runtime
from hermes.messages import HookEvent

SECONDS = 10
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "hosting.md"
ROWS = {
    "async: agents, builders, hooks, compressors, titlers, transcribers, adapters": (
        "agent", "async builder", "async hook", "compressor", "titler", "adapter",
    ),
    "agents, compressors, titlers, transcribers, adapters with `on_trio = True`": ("Trio agent",),
    "plain `build_agent`, `agent_spec`, `redact`": ("builder", "spec", "redact"),
    "`callback=` of `subscribe`": ("callback",),
    "plain hooks and transcribers": ("hook",),
    "functions in `blocking_agent`": ("blocking_agent",),
    "coroutines in `asyncio_agent`": ("asyncio_agent",),
}  # fmt: skip
PLUGINS = {
    "trio": ["-p", "pytest_trio.plugin"],
    "asyncio": ["-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function"],
    "anyio": ["-p", "anyio.pytest_plugin"],
}


def table():
    """Return the cells of each row of the table, by what is in the first one."""
    text = PAGE.read_text().split("## Where your code runs")[1]
    rows = re.findall(r"^\| (.+) \|$", text.split("\n\n")[2], re.MULTILINE)[1:]
    return {first: rest for first, *rest in (row.split(" | ") for row in rows)}


class Places:
    """Parts of a runtime that note in which thread they run."""

    def __init__(self):
        self.host = threading.get_ident()
        self.found = {}
        self.complete = threading.Event()

    def note(self, part):
        name = threading.current_thread().name
        if threading.get_ident() == self.host:
            place = "your loop"
        elif name == "hermes runtime":
            place = "the runtime's thread"
        else:
            loop = asyncio.events._get_running_loop()
            place = "a worker thread" if loop is None else "a loop of its own"
        self.found[part] = place
        if len(self.found) == sum(map(len, ROWS.values())):
            self.complete.set()

    def wait(self):
        """Wait until each part has run."""
        self.complete.wait(SECONDS)

    def build(self, spec):
        self.note("builder")
        kind = spec.session_key
        if kind == "blocking":
            return blocking_agent(self.in_thread)(spec)
        if kind == "asyncio":
            self.bridge = asyncio_agent(self.on_own_loop)
            return self.bridge(spec)
        return self.build_later() if kind == "later" else TrioAgent(self)

    async def build_later(self):
        self.note("async builder")
        return self

    async def run(self, turn):
        self.note("agent")
        return TurnResult(text="Yes.")

    def in_thread(self, turn):
        self.note("blocking_agent")
        return "Yes."

    async def on_own_loop(self, turn):
        self.note("asyncio_agent")
        return "Yes."

    def spec(self, session_key, source):
        self.note("spec")
        return AgentSpec(session_key=session_key)

    def redact(self, text):
        self.note("redact")
        return text

    def hook(self, session_id, platform):
        self.note("hook")

    async def async_hook(self, session_id, platform):
        self.note("async hook")

    async def summarize(self, request, /):
        self.note("compressor")
        return Summary("short")

    async def title(self, request, /):
        self.note("titler")
        return Summary("A title")

    platform, local = "memory", True

    async def send(self, row, /):
        self.note("adapter")

    def callback(self, envelope):
        self.note("callback")

    @property
    def options(self):
        return {
            "build_agent": self.build,
            "agent_spec": self.spec,
            "redact": self.redact,
            "hooks": {"on_session_finalize": [self.hook, self.async_hook]},
            "compressor": self,
            "titler": self,
            "adapters": [self],
            "config": Config(compression=CompressionConfig(protect_first=0, margin=0)),
        }


class TrioAgent:
    """An agent that needs Trio."""

    on_trio = True

    def __init__(self, places):
        self.places = places

    async def run(self, turn):
        await trio.lowlevel.checkpoint()
        self.places.note("Trio agent")
        return TurnResult(text="Yes.")


SOURCE = Source("memory", chat_id="1")
ASKED = ("blocking", "asyncio", "Trio", *["later"] * 4)


async def use(runtime, wait):
    for key in ASKED:
        await runtime.ask(key, "Are you there?", source=SOURCE)
    chat = runtime.conversation("later")
    await chat.compress(keep_exchanges=1)
    await chat.new()
    await wait


async def on_trio(places, path):
    async with open_runtime(path, **places.options) as runtime:
        with runtime.subscribe(callback=places.callback):
            await use(runtime, trio.to_thread.run_sync(places.wait))


async def on_asyncio(places, path):
    async with open_runtime_asyncio(path, **places.options) as runtime:
        async with runtime.subscribe(callback=places.callback):
            await use(runtime, asyncio.to_thread(places.wait))


def without_loop(places, path):
    with start_runtime(path, **places.options) as runtime:
        with runtime.subscribe(callback=places.callback):
            for key in ASKED:
                runtime.ask(key, "Are you there?", source=SOURCE)
            chat = runtime.conversation("later")
            chat.compress(keep_exchanges=1)
            chat.new()
            places.wait()


HOSTS = {
    "Trio": lambda *args: trio.run(on_trio, *args),
    "asyncio": lambda *args: asyncio.run(on_asyncio(*args)),
    "no loop": without_loop,
}


@pytest.mark.parametrize("column", range(3), ids=HOSTS)
def test_the_page_says_where_code_runs(column, path):
    places = Places()
    [*HOSTS.values()][column](places, path)
    rows = table()
    said = {part: rows[first][column] for first, parts in ROWS.items() for part in parts}
    assert places.found == said


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_tests_that_the_page_shows_pass(plugin, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    [code] = [block for block in blocks if f"@pytest.mark.{plugin}\n" in block]
    (tmp_path / "test_shown.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *PLUGINS[plugin]],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_configuring_page_names_every_setting():
    text = (DOCS / "configuring.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    settings = [*Config.__struct_fields__, *CompressionConfig.__struct_fields__]
    missing = {*settings, *RuntimeOptions.__annotations__, *get_args(HookEvent)} - named
    assert missing == set()
