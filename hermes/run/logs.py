"""The log of the bot: one line per event, as text or JSON, written by a separate thread.

Everything that is logged in the process passes here, also by other libraries and for unhandled
exceptions. No content of messages is logged: neither texts nor the messages of exceptions of other
code, which may quote them; of those a line has the class and the traceback. Secrets are redacted,
in every encoding. No value can imitate another line.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from hermes import user_code
from hermes.redaction import StrictRedactor
from hermes.sanitize import one_line, sanitize
from hermes.settings.schema import LogForm

MAX_QUEUED = 1000
"""Lines that wait for a slow stream; further ones are dropped and counted."""
MAX_VALUE = 2000
MAX_TRACEBACK = 8000
FLUSH_TIMEOUT = 2.0
MAX_LOG_BYTES = 10_000_000
MAX_SHOWN = 100
SHOWN = ("hermes.adapters", "hermes.agents.tools.mcp_servers", "hermes.run")
"""Loggers whose warnings concern the operator of a chat; failures of turns are shown there."""
CONTINUATION = "    | "
"""Starts the lines of a traceback in the text format."""

_UNQUOTED = re.compile(r"[^\s=\"']+")


class LogHandler(logging.handlers.QueueHandler):
    """Formats records and queues them for a thread that writes; logging never waits for it."""

    def __init__(self, stream: IO[str], formatter: logging.Formatter) -> None:
        # `queue.Queue` could deadlock if a garbage collection inside of it logs; SimpleQueue is
        # reentrant, and its bound is checked in `enqueue`.
        self._lines: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self._lines)
        self.setFormatter(formatter)
        self._closed = False
        self._listener = _StreamListener(self, self._lines, stream)
        self.dropped: int = 0
        """Number of lines that were dropped because the queue was full."""
        self._listener.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a formatted record, or drop it if the queue is full."""
        if self._lines.qsize() >= MAX_QUEUED:
            self.dropped += 1
        else:
            self._lines.put_nowait(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        """Log that a record could not be formatted, instead of printing it."""
        error = sys.exc_info()[1]
        kind = "unknown" if error is None else user_code.kind(error)
        self.enqueue(self.internal("could not format a log record of %s: %s", record.name, kind))

    def internal(self, message: str, *values: object) -> logging.LogRecord:
        """Return a formatted warning about the log itself."""
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, values, None)
        formatted: logging.LogRecord = self.prepare(record)
        return formatted

    def flush(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Wait until all queued lines are written, at most `timeout` seconds.

        `logging.shutdown` calls it when Python exits.
        """
        if not self._closed:
            written = threading.Event()
            self._lines.put_nowait(written)
            written.wait(timeout)

    def close(self) -> None:
        """Let the thread end once it has written all queued lines."""
        if not self._closed:
            self._closed = True
            self._listener.enqueue_sentinel()
        super().close()


class _StreamListener(logging.handlers.QueueListener):
    """Writes the queued lines in a daemon thread.

    It writes by itself: `logging.shutdown` would wait for the lock of a `StreamHandler` whose
    stream is stuck.
    """

    def __init__(self, handler: LogHandler, lines: SimpleQueue[Any], stream: IO[str]) -> None:
        super().__init__(lines)
        self._lines = lines
        self._handler = handler
        self._stream = stream
        self._reported = 0

    def handle(self, record: logging.LogRecord | threading.Event) -> None:
        """Write a line, or confirm that all lines before a flush are written."""
        if isinstance(record, logging.LogRecord):
            self._write(record)
        dropped = self._handler.dropped - self._reported
        if dropped >= MAX_QUEUED or (dropped and self._lines.empty()):
            self._reported += dropped
            self._write(self._handler.internal("dropped %d lines: the log is too slow", dropped))
        if isinstance(record, threading.Event):
            record.set()

    def _write(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # the stream is closed, and there is no other
            self._stream.write(f"{record.getMessage()}\n")
            self._stream.flush()


class ScreenHandler(logging.Handler):
    """Shows one line on the screen for what an operator must know; the log has the details."""

    def __init__(self, redactor: StrictRedactor) -> None:
        super().__init__(logging.WARNING)
        self._redactor = redactor
        self._shown: deque[str] = deque(maxlen=MAX_SHOWN)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message to standard error, which a chat shows above its input line.

        A message that was shown before, such as that of a server which fails at each start, is not
        repeated.
        """
        line = record.getMessage()
        if record.name.startswith(SHOWN) and line not in self._shown:
            self._shown.append(line)
            self.show(line)

    def show(self, line: str) -> None:
        """Write a line to the screen."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{one_line(self._redactor(line))}\n")


def show(line: str) -> None:
    """Show a line to the operator of a chat at a terminal; without one nothing happens."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, ScreenHandler):
            handler.show(line)


def at_terminal() -> bool:
    """Whether a chat would be at a terminal, so that a log would be written over it."""
    return all(os.isatty(descriptor) for descriptor in (0, 1, 2))


def log_path(database: Path) -> Path:
    """Return the log file of a chat at a terminal; each database has its own."""
    return database.with_name(f"{database.name}.log")


def open_log_file(path: Path) -> IO[str] | None:
    """Open a log file that only its owner can read; None if that is not possible.

    A file that has become too large is kept once under another name.
    """
    try:
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace")


def configure(
    *,
    form: LogForm,
    level: str,
    secrets: Sequence[str],
    stream: IO[str],
    screen: bool = False,
) -> None:
    """Send everything that is logged in this process to a stream, without secrets. Call it once.

    `level` applies to Hermes; of other libraries only warnings and errors are logged. With
    `screen`, what an operator must know is shown on standard error too.
    """
    redactor = StrictRedactor(secrets)
    common: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=("metadata",)),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Processor = _render_text if form == "text" else structlog.processors.JSONRenderer()
    if form == "text" and stream.isatty():
        render = structlog.dev.ConsoleRenderer(pad_event_to=0, pad_level=False)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=common,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _SanitizeValues(redactor, form),
            render,
            # Once more, for what the renderer has put together.
            lambda _logger, _name, line: redactor.values(str(line)),
        ],
    )
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    _install(LogHandler(stream, formatter), level)
    if screen:
        logging.getLogger().addHandler(ScreenHandler(redactor))


def _install(handler: LogHandler, level: str) -> None:
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_unhandled
    threading.excepthook = lambda args: _log_unhandled(
        args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: _log_unhandled(
        args.exc_type, args.exc_value, args.exc_traceback
    )


def set_level(level: str) -> None:
    """Set the lowest level to log; of other libraries only warnings and errors are logged."""
    hermes = logging.getLogger("hermes")
    hermes.setLevel(level.upper())
    logging.getLogger().setLevel(max(hermes.level, logging.WARNING))


def _log_unhandled(
    kind: type[BaseException], error: BaseException | None, where: TracebackType | None
) -> None:
    """Log an unhandled exception like any other; Python's own report could contain a secret."""
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    logging.getLogger("hermes.run").critical("unhandled exception", exc_info=(kind, error, where))


def event_logger(name: str) -> Callable[..., None]:
    """Return a function that logs an event and named values, at level info."""
    logger: Callable[..., None] = structlog.stdlib.get_logger(name).info
    return logger


def dropped() -> int:
    """Return how many lines were dropped so far because the stream was too slow."""
    handlers = logging.getLogger().handlers
    return sum(handler.dropped for handler in handlers if isinstance(handler, LogHandler))


class _SanitizeValues:
    """Redacts and shortens the values of a line, and puts each on one line."""

    def __init__(self, redactor: StrictRedactor, form: LogForm) -> None:
        self._redactor = redactor
        self._indent = CONTINUATION if form == "text" else ""

    def __call__(self, _logger: WrappedLogger, _name: str, values: EventDict) -> EventDict:
        exc_info = values.pop("exc_info", None)
        values.pop("stack_info", None)
        clean: EventDict = {key: self._value(value) for key, value in values.items() if value != {}}
        if (error := _exception(exc_info)) is not None:
            text = self._redactor(format_exception(error))  # before half a secret is cut off
            lines = sanitize(_shorten(text, MAX_TRACEBACK)).expandtabs().splitlines()
            clean["exception"] = "\n".join(f"{self._indent}{line}" for line in lines)
        return clean

    def _value(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(each) for each in value]
        if isinstance(value, dict):
            return {self._value(str(name)): self._value(each) for name, each in value.items()}
        return one_line(_shorten(self._redactor(str(value)), MAX_VALUE))


def _shorten(text: str, length: int) -> str:
    """Return the text without its middle if it is too long."""
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _render_text(_logger: WrappedLogger, _name: str, values: EventDict) -> str:
    """Render a line as text: time, level, logger, event, and then `name=value` pairs."""
    exception = values.pop("exception", None)
    head = [str(values.pop(name, "")) for name in ("timestamp", "level", "logger", "event")]
    pairs = [f"{name}={_quoted(value)}" for name, value in _flat(values)]
    line = " ".join([*head, *pairs])
    return line if exception is None else f"{line}\n{exception}"


def _flat(values: EventDict) -> Iterator[tuple[str, object]]:
    """Yield names and values; those of a dict as `name.key`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat({f"{name}.{key}": each for key, each in value.items()})
        else:
            yield name, value


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_quoted, value)) or "-"
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if _UNQUOTED.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _exception(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    elif exc_info is True:
        exc_info = sys.exc_info()[1]
    return exc_info if isinstance(exc_info, BaseException) else None


def format_exception(error: BaseException) -> str:
    """Return the traceback and class of an exception; its message only if Hermes wrote it."""
    return "\n".join(_exception_lines(error, set()))


def _exception_lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _exception_lines(cause, seen)
        yield "followed by:"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}"
    yield user_code.loggable(error)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            if id(each) not in seen:
                yield from (f"  {line}" for line in _exception_lines(each, seen))
