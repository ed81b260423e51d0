"""The bot: opens its parts, runs them, and closes them in the right order."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import trio

import hermes
from hermes.actors.admission.access import AccessPolicy
from hermes.actors.runtime import Runtime
from hermes.adapters.console import Console
from hermes.adapters.console.adapter import SOURCE
from hermes.adapters.jsonrpc.client import RequestFailed
from hermes.adapters.jsonrpc.socket_server import serve_socket
from hermes.background import cancel, open_background, set_event, start_soon
from hermes.config import shown_database
from hermes.embed import open_runtime
from hermes.errors import HermesError, StoreInUse
from hermes.redaction import StrictRedactor
from hermes.run import logs
from hermes.run.agent_setup import AgentSetup, open_agent_setup
from hermes.run.attached import ChatOptions, ask_bot, ask_runtime, chat_with_bot, connect_to_bot
from hermes.run.configuration import Configuration, expand_path, read_database
from hermes.run.local_files import create_folder, local_path, owned, require_free
from hermes.run.platforms import Platform, describe_http, open_platforms, serving_http
from hermes.run.references import resolve_hooks, secret_values
from hermes.run.reload import Reloader, access_rules, reloading
from hermes.run.telemetry import Telemetry
from hermes.settings import Problem, Settings, SettingsError
from hermes.settings.installation import command
from hermes.settings.schema import LogLevel
from hermes.store.sqlite import runtime_lock
from hermes.store.sqlite.file_lock import resolve
from hermes.texts import Texts

log: logging.Logger = logging.getLogger(__name__)

Frontend: TypeAlias = Literal["console", "once", "stdio", "none"]
"""What the bot serves beside its platforms; "once" is a single question."""
ReservedStdio: TypeAlias = tuple[int, int] | None
"""Copies of standard input and output, reserved for JSON-RPC before anything could print."""

GREETING = """\
Hermes {version}. {agent}
{configuration}
Conversations are stored in {path}
{http}{log}/help lists the commands; Ctrl-D exits.
"""
ATTACHED = """\
Hermes {version}. Attached to the running bot ({owner}).
Conversations are stored in {path}
/help lists the commands; Ctrl-D leaves the chat, and the bot continues.
"""
HISTORY_FILE = "console_history"
EXIT_NO_PLATFORM = 5
EXIT_UNANSWERED = 6
EXIT_BOT_ENDED = 7
EXIT_INTERRUPTED = 130
LOCAL_PLATFORMS: frozenset[str] = frozenset({"console", "rpc"})
"""Platforms whose user is whoever started the bot."""
NOT_SENT = "Interrupted; the question was not sent."
BOT_ENDED = "The bot ({owner}) has ended."
UNANSWERED = "Accepted messages without an answer: {number}; the next start answers them."
NOTHING_TO_RUN = (
    "nothing to run: no platform such as [telegram] or [http] in the settings; "
    "to chat in the terminal: {chat}"
)


class Stopped(HermesError):
    """The bot stopped without serving all of its input.

    `code` is the exit code, and `reason` a sentence for the user, if there is one.
    """

    def __init__(self, code: int, reason: str | None = None) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


@attrs.frozen
class Shutdown:
    """A request to shut down: an event for what stops by itself, a cancel scope for the rest."""

    requested: trio.Event = attrs.Factory(trio.Event)
    started: trio.Event = attrs.Factory(trio.Event)
    """Set once the runtime is open; before that there is nothing to drain."""
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    def request(self) -> None:
        """Request the shutdown."""
        set_event(self.requested)
        cancel(self.scope)


def default_level(frontend: Frontend) -> LogLevel:
    """Return the log level if the settings name none."""
    if frontend == "once":
        return "warning"
    return "warning" if frontend == "console" and not logs.at_terminal() else "info"


async def run_bot(
    settings: Settings,
    configuration: Configuration,
    frontend: Frontend,
    stdio: ReservedStdio = None,
    chat: ChatOptions = ChatOptions(),  # noqa: B008 - immutable
) -> bool:
    """Run the bot until its input ends or a signal stops it.

    If another bot owns the database, a chat or a question is attached to that one. Returns whether
    every turn at the console succeeded. Raises `Stopped` for other exits,
    `SettingsError` if there is nothing to run, and the errors of `open_runtime`.
    """
    if frontend == "none" and settings.telegram is None and settings.http is None:
        raise SettingsError([Problem(0, "", NOTHING_TO_RUN.format(chat=command("chat")))])
    database = read_database(settings.data)
    create_folder(database)
    signals = [signal.SIGTERM, signal.SIGINT]
    if frontend == "console" and os.isatty(0) and os.isatty(1):
        signals = [signal.SIGTERM]  # there the console handles Ctrl-C: it stops a turn
    early = Stopped(EXIT_INTERRUPTED, NOT_SENT) if frontend == "once" else Stopped(0)
    async with shutdown_on_signals(*signals, early=early) as shutdown:
        path = local_path(database)
        try:
            require_free(database)  # fail now, not after the MCP servers have started
        except StoreInUse:
            alone = frontend in {"stdio", "none"} or "http" in configuration.overrides
            if alone or (stream := await connect_to_bot(path)) is None:
                raise
            return await _attach(settings, database, stream, shutdown, chat)
        with owned(database):
            return await _run(settings, configuration, frontend, shutdown, stdio, chat)


async def _attach(
    settings: Settings,
    database: Path | str,
    stream: trio.SocketStream,
    shutdown: Shutdown,
    chat: ChatOptions,
) -> bool:
    """Chat with the bot at the other end of a stream, or ask it a question."""
    path = local_path(database)
    owner = runtime_lock.owner(resolve(path)) or "unknown process"
    texts = Texts(**settings.texts)
    set_event(shutdown.started)
    ended = Stopped(EXIT_BOT_ENDED, BOT_ENDED.format(owner=owner))
    if chat.question is not None:
        answered = await ask_bot(stream, chat.question, texts, shutdown.requested)
        if answered is None:
            raise ended
        return _unless_interrupted(shutdown, answered=answered)
    console = _console(path, chat)
    console.greeting = ATTACHED.format(
        version=hermes.__version__, owner=owner, path=_shown(database)
    )
    alive = True
    with shutdown.scope:
        try:
            alive = await chat_with_bot(stream, console, texts, owner)
        except RequestFailed as error:
            raise Stopped(os.EX_TEMPFAIL, str(error)) from None
    if console.left:
        raise Stopped(EXIT_INTERRUPTED)
    if not alive:
        raise ended
    return not console.failed


async def _run(
    settings: Settings,
    configuration: Configuration,
    frontend: Frontend,
    shutdown: Shutdown,
    stdio: ReservedStdio,
    chat: ChatOptions,
) -> bool:
    database, secrets = read_database(settings.data), secret_values(settings)
    path = local_path(database)
    redactor = StrictRedactor(secrets)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(
            open_agent_setup(settings, redactor.values, configuration.reason())
        )
        platforms = await stack.enter_async_context(_open_platforms(settings, frontend))
        console = _console(path, chat) if frontend == "console" else None
        telemetry = _telemetry(path, settings, platforms, agent, redactor)
        rules = access_rules(settings)
        opening = open_runtime(
            database,
            build_agent=agent.build,
            agent_spec=agent.agent_spec,
            compressor=agent.compressor,
            titler=agent.titler,
            transcriber=agent.transcriber,
            catalog=agent.catalog,
            config=settings.config(),
            adapters=[*platforms, *([] if console is None else [console])],
            access=AccessPolicy(rules=rules, rates=settings.rates, local=LOCAL_PLATFORMS),
            hooks=resolve_hooks(settings), redact=redactor.values,
            texts=Texts(**settings.texts), force=configuration.force,
        )  # fmt: skip
        runtime = await stack.enter_async_context(telemetry.observe(opening))
        set_event(shutdown.started)
        logs.event_logger("hermes.run")("started", frontend=frontend, agent=settings.agent.kind)
        reloader = Reloader(
            settings, configuration, default_level(frontend), rules, agent.apply,
            frozenset(secrets), telemetry.show_settings,
        )  # fmt: skip
        await stack.enter_async_context(reloading(reloader, path, shutdown.request))
        serving = _serving_http(settings, runtime, frontend, telemetry, configuration.open_page)
        url = telemetry.http = await stack.enter_async_context(serving)
        await _greet(console, runtime, agent, _where(configuration, database, url))
        clients = serve_socket(runtime, resolve(path)) if settings.socket else nullcontext()
        async with clients, receiving(platforms, runtime, required=frontend == "none" and not url):
            if frontend != "stdio":
                return await _serve_console(runtime, console, shutdown, chat)
            answered = await _serve_stdio(runtime, settings, shutdown, stdio)
        return await _finish_stdio(runtime, answered=answered)


def _telemetry(
    path: Path,
    settings: Settings,
    platforms: Sequence[Platform],
    agent: AgentSetup,
    redactor: StrictRedactor,
) -> Telemetry:
    return Telemetry(
        path=path,
        log_event=logs.event_logger("hermes.turns"),
        prometheus_file=_prometheus_file(settings),
        adapters=lambda: {each.platform: each.problem or "running" for each in platforms},
        model=agent.model,
        budgets=settings.agent.budgets,
        mcp_servers=agent.servers,
        dropped=logs.dropped,
        redact=redactor,
        otel=settings.otel,
    )


def _open_platforms(
    settings: Settings, frontend: Frontend
) -> AbstractAsyncContextManager[Sequence[Platform]]:
    """Open the platforms; none for a single question."""
    return nullcontext(()) if frontend == "once" else open_platforms(settings)


def _serving_http(
    settings: Settings,
    runtime: Runtime,
    frontend: Frontend,
    telemetry: Telemetry,
    open_page: bool,
) -> AbstractAsyncContextManager[str | None]:
    """Serve HTTP, if the settings say so; not for a single question."""
    if frontend == "once":
        return nullcontext()
    return serving_http(settings, runtime, telemetry.collected(runtime), open_page=open_page)


@asynccontextmanager
async def receiving(
    platforms: Sequence[Platform], runtime: Runtime, *, required: bool
) -> AsyncIterator[None]:
    """Receive messages of the platforms during the block.

    If they are `required`, raises `Stopped` once no platform is left.
    """
    left = len(platforms)

    async def receive(platform: Platform) -> None:
        nonlocal left
        await platform.run(runtime)
        left -= 1
        if required and not left:
            raise Stopped(EXIT_NO_PLATFORM)

    async with open_background() as background:
        for platform in platforms:
            start_soon(background, receive, platform)
        yield


async def _serve_stdio(
    runtime: Runtime, settings: Settings, shutdown: Shutdown, stdio: ReservedStdio
) -> bool:
    """Serve JSON-RPC. Returns whether all messages were answered within the drain time."""
    from hermes.adapters.jsonrpc import serve_stdio  # noqa: PLC0415 - rarely needed

    linger = settings.config().drain_timeout
    return await serve_stdio(runtime, linger=linger, stop=shutdown.requested, descriptors=stdio)


async def _finish_stdio(runtime: Runtime, *, answered: bool) -> bool:
    """Drain the runtime. Raises `Stopped` if accepted messages have no answer then."""
    await runtime.drain(None if answered else 0)  # 0: they had their time
    stored = (await runtime.admin.statistics()).store
    if stored is None or stored.inbox_open:
        number = "some" if stored is None else stored.inbox_open
        raise Stopped(EXIT_UNANSWERED, UNANSWERED.format(number=number))
    return True


async def _serve_console(
    runtime: Runtime, console: Console | None, shutdown: Shutdown, chat: ChatOptions
) -> bool:
    if chat.question is not None:
        answered = await ask_runtime(runtime, chat.question, shutdown.requested)
        return _unless_interrupted(shutdown, answered=answered)
    if console is None:
        await shutdown.requested.wait()
        return True
    with shutdown.scope:
        await console.run(runtime)
    if console.left:
        raise Stopped(EXIT_INTERRUPTED)
    return not console.failed


def _unless_interrupted(shutdown: Shutdown, *, answered: bool) -> bool:
    """Return whether a question was answered; raise `Stopped` if it was interrupted."""
    if shutdown.requested.is_set() and not answered:
        raise Stopped(EXIT_INTERRUPTED)
    return answered


async def _greet(
    console: Console | None, runtime: Runtime, agent: AgentSetup, where: Mapping[str, str]
) -> None:
    """Let a console say what answers its conversation, which may have chosen an agent."""
    if console is not None:
        chosen = await runtime.conversation(console.session_key).settings()
        greeting = agent.greeting(chosen, SOURCE)
        console.greeting = GREETING.format(version=hermes.__version__, agent=greeting, **where)


def _where(configuration: Configuration, database: Path | str, url: str | None) -> dict[str, str]:
    """Return the lines of the greeting that say where things are."""
    path = local_path(database)
    return {
        "configuration": configuration.describe(),
        "path": _shown(database),
        "http": "" if url is None else f"{describe_http(url)}\n",
        "log": f"The log is {logs.log_path(path).absolute()}\n" if logs.at_terminal() else "",
    }


def _shown(database: Path | str) -> str:
    """Return the database for people: its absolute path, or its URL without a password."""
    return shown_database(database if isinstance(database, str) else database.absolute())


def _console(path: Path, chat: ChatOptions) -> Console:
    return Console(session_key=chat.session_key, history=path.parent / HISTORY_FILE)


@asynccontextmanager
async def shutdown_on_signals(*signals: signal.Signals, early: Stopped) -> AsyncIterator[Shutdown]:
    """Request a shutdown at the first signal; at the second one raise `Stopped` at once.

    Before the shutdown has `started`, the first signal raises `early`.
    """
    shutdown = Shutdown()

    async def receive(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*signals) as received:
            task_status.started()
            async for _ in received:
                if shutdown.requested.is_set():
                    raise Stopped(EXIT_INTERRUPTED)
                if not shutdown.started.is_set():
                    raise early
                log.info("draining: finishing the running turns; a second signal stops at once")
                shutdown.request()

    async with open_background() as background:
        await background.start(receive)
        yield shutdown


def _prometheus_file(settings: Settings) -> Path | None:
    return None if settings.metrics is None else expand_path(settings.metrics.file)
