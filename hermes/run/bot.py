"""The bot itself: its parts are put together, run, and ended in the right order."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.console import SOURCE, Console
from hermes.config import CompressionConfig, Config, data_path
from hermes.embed import open_runtime
from hermes.keys import session_key
from hermes.run import resolving
from hermes.run.answering import open_answering
from hermes.settings import Settings

Front = Literal["console", "stdio", "none"]

GREETING = """\
Hermes. {agent}
Your conversations are kept in {path}
/help shows the commands; Ctrl-D ends.
"""


class Stopped(Exception):
    """A second signal ended the bot before it had drained."""


async def run_bot(settings: Settings, front: Front) -> bool:
    """Run until the front ends, or a signal ends it; says whether every turn was answered."""
    # At a console Ctrl-C stops a turn, and is the console's own.
    numbers = [signal.SIGTERM] if front == "console" else [signal.SIGTERM, signal.SIGINT]
    async with ended_by_signals(*numbers) as ending:
        return await _run(settings, place_of(settings), front, ending)


def place_of(settings: Settings) -> Path:
    """The file of the conversations; the user's own folder is made for it."""
    if settings.data is not None:
        return Path(settings.data).expanduser()
    path = data_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


async def _run(settings: Settings, path: Path, front: Front, ending: trio.CancelScope) -> bool:
    async with (
        open_answering(settings) as answering,
        open_runtime(
            path,
            agent=answering.build,
            describe=answering.describe,
            compressor=answering.compressor,
            titler=answering.titler,
            config=config_of(settings),
            hooks={
                event: [resolving.named(f"hooks.{event}", each) for each in hooks]
                for event, hooks in settings.hooks.items()
            },
        ) as runtime,
    ):
        answering.begin(runtime)
        with ending:
            return await _talk(runtime, front, answering.says, path)
        return True


async def _talk(runtime: Runtime, front: Front, says: str, path: Path) -> bool:
    if front == "none":
        await trio.sleep_forever()
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        sys.stdout.write(GREETING.format(agent=says, path=path))
    prompt = "> " if at_terminal else ""
    return await Console(runtime, session_key(SOURCE), prompt, sys.stdin, sys.stdout).run()


@asynccontextmanager
async def ended_by_signals(*numbers: signal.Signals) -> AsyncIterator[trio.CancelScope]:
    """A scope that the first signal cancels, so that the bot drains; a second one ends it all."""
    ending = trio.CancelScope()
    stopped = False
    raised: BaseException | None = None

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for _ in signals:
                if ending.cancel_called:
                    stopped = True
                    nursery.cancel_scope.cancel()
                ending.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        try:
            yield ending
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, not in a group
            raised = error
        nursery.cancel_scope.cancel()
    if stopped:
        raise Stopped
    if raised is not None:
        raise raised


def config_of(settings: Settings) -> Config:
    """The runtime's own settings."""
    compression, runtime = settings.compression, settings.runtime
    return Config(
        busy=runtime.busy,
        busy_by_platform=runtime.busy_on,
        expiry=settings.expiry.policy(),
        expiry_by={name: table.policy() for name, table in settings.expiry_by.items()},
        max_open=runtime.max_open,
        turn_seconds=runtime.turn_seconds,
        drain_seconds=runtime.drain_seconds,
        passivate_seconds=runtime.passivate_seconds,
        max_agents=runtime.max_agents,
        compression=CompressionConfig(
            enabled=compression.enabled,
            window=compression.window,
            max_output=compression.max_output,
            share=compression.share,
            tail_share=compression.tail_share,
            protect_first=compression.protect_first,
        ),
    )
