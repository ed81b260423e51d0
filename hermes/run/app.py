"""The bot itself: its parts are put together, run, and ended in the right order."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import trio

from hermes.actors.admission.access import AccessPolicy, PlatformRules
from hermes.actors.admission.rate_limit import RateLimit
from hermes.actors.runtime import Runtime
from hermes.adapters.console import Console
from hermes.config import CompressionConfig, Config, data_path
from hermes.embed import open_runtime
from hermes.errors import HermesError, StoreRefused, plain
from hermes.protocols import Adapter
from hermes.redaction.values import Redactor
from hermes.run import logs, references
from hermes.run.agent_setup import AgentSetup, open_answering
from hermes.run.platforms import Platform, open_platforms
from hermes.run.telemetry import open_telemetry
from hermes.settings import BadSettings, Problem, Settings
from hermes.store import file_lock

log = logging.getLogger(__name__)

Front = Literal["console", "stdio", "none"]
Kept: TypeAlias = tuple[int, int] | None
"""Standard input and output, where they were kept for frames before anything could print."""

GREETING = """\
Hermes. {agent}
Your conversations are kept in {path}
/help shows the commands; Ctrl-D ends.
"""
HISTORY = "console_history"
NO_PLATFORM = 5
LOCAL: frozenset[str] = frozenset({"console", "rpc"})
"""Where who speaks is who started the bot."""
NOTHING = "there is nothing to run: no console, and no platform such as [telegram] in the settings"


class Stopped(HermesError):
    """It ended neither by the end of its input nor by one signal; `code` is for the shell."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@attrs.frozen
class Shutdown:
    """The end, once it is asked for: heard by those who end in their own way, and by the rest."""

    asked: trio.Event = attrs.Factory(trio.Event)
    started: trio.Event = attrs.Factory(trio.Event)
    """Before this there is nothing to drain."""
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    def begin(self) -> None:
        """Ask for it."""
        self.asked.set()
        self.scope.cancel()


async def run_bot(settings: Settings, front: Front, kept: Kept = None) -> bool:
    """Run until the front ends, or a signal ends it; says whether every turn was answered."""
    if front == "none" and settings.telegram is None:
        raise BadSettings([Problem(0, "", NOTHING)])
    prepare(settings)
    numbers = [signal.SIGTERM, signal.SIGINT]
    if front == "console" and os.isatty(0) and os.isatty(1):
        numbers = [signal.SIGTERM]  # there Ctrl-C stops a turn, and is the console's own
    async with ended_by_signals(*numbers) as ending:
        path = place_of(settings)
        file_lock.require_free(path)  # now: servers with tools, which come first, may take long
        return await _run(settings, path, front, ending, kept)


def place_of(settings: Settings) -> Path:
    """The file of the conversations."""
    return data_path() if settings.data is None else references.place(settings.data)


def prepare(settings: Settings) -> None:
    """Make the user's own folder for the file; others are not for us to make."""
    if settings.data is not None:
        return
    folder = data_path().parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = f"the folder {folder} cannot be made: {error.strerror}; say --db FILE"
        raise StoreRefused(why) from None


async def _run(settings: Settings, path: Path, front: Front, ending: Shutdown, kept: Kept) -> bool:
    redact = Redactor(references.secrets(settings))
    async with AsyncExitStack() as stack:
        answering = await stack.enter_async_context(open_answering(settings, redact.known))
        platforms = await stack.enter_async_context(open_platforms(settings))
        console = _console(answering, path) if front == "console" else None
        adapters: list[Adapter] = [*platforms, *([console] if console is not None else [])]
        watch = await stack.enter_async_context(
            open_telemetry(
                path,
                write=logs.line("hermes.turns"),
                prometheus_file=metrics_of(settings),
                adapters=lambda: {each.platform: each.trouble or "running" for each in platforms},
                dropped=logs.dropped,
                redact=redact,
            )
        )
        runtime = await stack.enter_async_context(
            open_runtime(
                path,
                agent=answering.build,
                describe=answering.describe,
                compressor=answering.compressor,
                titler=answering.titler,
                config=config_of(settings),
                adapters=adapters,
                admission=access_of(settings),
                hooks=references.hooks(settings),
                redact=redact.known,
            )
        )
        ending.started.set()
        watch.begin(runtime)
        answering.begin(runtime)
        logs.line("hermes.run")("started", front=front, agent=settings.agent.kind)
        async with beside(platforms, runtime, alone=front == "none"):
            if front == "stdio":
                return await _serve(runtime, ending, kept)
            return await _talk(runtime, console, ending)


@asynccontextmanager
async def beside(
    platforms: list[Platform], runtime: Runtime, *, alone: bool
) -> AsyncIterator[None]:
    """The platforms, running during the block; where they are `alone`, their end is the bot's."""
    left = len(platforms)

    async def receive(platform: Platform) -> None:
        nonlocal left
        await platform.run(runtime)
        left -= 1
        if alone and not left:
            raise Stopped(NO_PLATFORM)

    try:
        async with trio.open_nursery() as nursery:
            for each in platforms:
                nursery.start_soon(receive, each)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise plain(group) from None


async def _serve(runtime: Runtime, ending: Shutdown, kept: Kept) -> bool:
    from hermes.adapters.jsonrpc import serve_stdio  # noqa: PLC0415 - only here

    await serve_stdio(runtime, stop=ending.asked, kept=kept)
    return True


async def _talk(runtime: Runtime, console: Console | None, ending: Shutdown) -> bool:
    if console is None:
        await ending.asked.wait()
        return True
    with ending.scope:
        await console.run(runtime)
    if console.left:
        raise Stopped(130)
    return not console.failed


def _console(answering: AgentSetup, path: Path) -> Console:
    return Console(
        greeting=GREETING.format(agent=answering.says, path=path), history=path.parent / HISTORY
    )


@asynccontextmanager
async def ended_by_signals(*numbers: signal.Signals) -> AsyncIterator[Shutdown]:
    """What the first signal ends, so that the bot drains; a second one ends everything at once."""
    ending = Shutdown()
    stopped: int | None = None
    raised: BaseException | None = None

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for _ in signals:
                if ending.asked.is_set() or not ending.started.is_set():
                    stopped = 130 if ending.asked.is_set() else 0
                    nursery.cancel_scope.cancel()
                    return
                log.info("told to end: draining; a second signal ends it at once")
                ending.begin()

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        try:
            yield ending
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, not in a group
            raised = error
        nursery.cancel_scope.cancel()
    if stopped is not None:
        raise Stopped(stopped)
    if raised is not None:
        raise raised


def metrics_of(settings: Settings) -> Path | None:
    """Where Prometheus finds the figures."""
    return None if settings.metrics is None else references.place(settings.metrics.file)


def access_of(settings: Settings) -> AccessPolicy:
    """Who may speak, where."""
    rules: dict[str | tuple[str, str], PlatformRules] = {}
    if (telegram := settings.telegram) is not None:
        rules["telegram"] = PlatformRules(
            operators=telegram.operators,
            users=telegram.users,
            chats=telegram.chats,
            open=telegram.open,
            pairing=telegram.pairing,
        )
    rates = RateLimit(per_minute=settings.rates.per_minute, burst=settings.rates.burst)
    return AccessPolicy(rules=rules, rates=rates, local=LOCAL)


def config_of(settings: Settings) -> Config:
    """The runtime's own settings."""
    compression, runtime = settings.compression, settings.runtime
    return Config(
        busy=runtime.busy,
        busy_by_platform={str(name): busy for name, busy in runtime.busy_on.items()},
        expiry=settings.expiry.policy(),
        expiry_by={name: table.policy() for name, table in settings.expiry_by.items()},
        max_queued=runtime.max_queued,
        turn_timeout=runtime.turn_timeout,
        drain_timeout=runtime.drain_timeout,
        idle_timeout=runtime.idle_timeout,
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
