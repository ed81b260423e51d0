"""What the bot writes about itself: a line for each thing, for people or as JSON.

Everything passes here, also what other libraries log and what ends the program. Nothing of a
message is written: not its text, and not the text of an error of somebody else's code, which may
quote it; of those a line has the class, and where they were raised. Secrets are taken out of what
is left, in whatever spelling. What a line is made of cannot look like another line.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from hermes import user_code
from hermes.redaction.values import Redactor

MAX_WAITING = 1000
"""Lines that wait for a slow sink; more are dropped, and counted."""
MAX_TEXT = 2000
MAX_TRACEBACK = 8000
FLUSH_SECONDS = 2.0
CONTINUED = "    | "

# Control characters, and those that change the direction or the end of a line.
_UNSEEN = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_PLAIN = re.compile(r"[^\s=\"']+")

Form = Literal["text", "json"]


class Sink(logging.Handler):
    """Writes lines from a thread of its own, so that nobody waits for a slow terminal or pipe."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._some = threading.Condition()
        self._busy = self._closed = False
        self.dropped = 0
        """Lines that were not written, for want of room."""
        self._unsaid = 0
        threading.Thread(target=self._write, name="hermes log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line; never waits for the stream."""
        try:
            said = self.format(record)
        except Exception as error:  # noqa: BLE001 - a bad log call must not end what it tells of
            said = self._own(
                "a line of %s could not be made: %s", record.name, user_code.kind(error)
            )
        with self._some:
            if len(self._lines) >= MAX_WAITING:
                self.dropped += 1
                self._unsaid += 1
                return
            self._lines.append(said)
            self._some.notify_all()

    def _own(self, text: str, *values: object) -> str:
        """A line about the log itself."""
        return self.format(
            logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, values, None)
        )

    def _write(self) -> None:
        while True:
            with self._some:
                self._busy = False
                self._some.notify_all()
                while not self._lines:
                    if self._closed:
                        return
                    self._some.wait()
                self._busy = True
                lines = list(self._lines)
                self._lines.clear()
                if self._unsaid:
                    lines.append(self._own("%d lines were dropped: too slow a log", self._unsaid))
                    self._unsaid = 0
            with suppress(OSError, ValueError):  # a sink that is gone; there is no other
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait a little until everything is written; Python does so at its end as well."""
        with self._some:
            self._some.wait_for(lambda: not self._lines and not self._busy, seconds)

    def close(self) -> None:
        """Let the thread end, once everything is written."""
        with self._some:
            self._closed = True
            self._some.notify_all()
        super().close()


def configure(*, form: Form, level: str, secrets: Sequence[str], stream: IO[str]) -> None:
    """Send all that is logged in this process to `stream`, in lines, without secrets.

    `level` is for Hermes; of other libraries only warnings are written. Call it once.
    """
    hiding = Redactor(secrets)
    sink = Sink(stream)
    clean = _Clean(hiding, for_people=form == "text")
    common: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Processor = _shown if form == "text" else structlog.processors.JSONRenderer()
    if form == "text" and stream.isatty():
        render = structlog.dev.ConsoleRenderer(pad_event_to=0, pad_level=False)
    sink.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                clean,
                render,
                _LastLook(hiding),
            ],
        )
    )
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    _install(sink, level)


def _install(sink: Sink, level: str) -> None:
    root, ours = logging.getLogger(), logging.getLogger("hermes")
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(sink)
    ours.setLevel(level.upper())
    root.setLevel(max(ours.level, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _ended
    threading.excepthook = lambda args: _ended(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _ended(args.exc_type, args.exc_value, args.exc_traceback)


def _ended(
    kind: type[BaseException], error: BaseException | None, where: TracebackType | None
) -> None:
    """What nobody caught is a line like the others: Python's own words could tell a secret."""
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    logging.getLogger("hermes.run").critical(
        "nobody caught this error", exc_info=(kind, error, where)
    )


def line(name: str) -> Callable[..., None]:
    """Writes lines of one logger: what happened, and named values."""
    logger: Callable[..., None] = structlog.stdlib.get_logger(name).info
    return logger


def dropped() -> int:
    """How many lines were not written so far, for want of room."""
    sinks = [each for each in logging.getLogger().handlers if isinstance(each, Sink)]
    return sum(sink.dropped for sink in sinks)


# What a line is made of


class _Clean:
    """Makes the values of a line harmless: bounded, without secrets, and of one line each."""

    def __init__(self, hiding: Redactor, *, for_people: bool) -> None:
        self._hiding = hiding
        self._for_people = for_people

    def __call__(self, _logger: WrappedLogger, _name: str, values: EventDict) -> EventDict:
        told = values.pop("exc_info", None)
        values.pop("stack_info", None)
        clean: EventDict = {key: self._value(value) for key, value in values.items()}
        if (error := _error(told)) is not None:
            text = self._hiding(described(error))  # before it is cut: a half key is still one
            text = _bounded(text, MAX_TRACEBACK)
            lines = [one_line(each) for each in text.splitlines()]
            clean["exception"] = self._joined(lines)
        return clean

    def _value(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(each) for each in value]
        return one_line(_bounded(self._hiding(str(value)), MAX_TEXT))

    def _joined(self, lines: list[str]) -> str:
        if not self._for_people:
            return "\n".join(lines)
        return "\n".join(f"{CONTINUED}{each}" for each in lines)


class _LastLook:
    """Takes secrets out of the line itself, whatever its parts have made of them."""

    def __init__(self, hiding: Redactor) -> None:
        self._hiding = hiding

    def __call__(self, _logger: WrappedLogger, _name: str, said: object) -> str:
        return self._hiding.known(str(said))


def one_line(text: str) -> str:
    """The text without anything that a terminal or a reader of lines would obey."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _bounded(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _shown(_logger: WrappedLogger, _name: str, values: EventDict) -> str:
    """A line for people: when, how bad, who, what, and then names and values."""
    exception = values.pop("exception", None)
    begin = [str(values.pop(name, "")) for name in ("timestamp", "level", "logger", "event")]
    rest = [f"{name}={_quoted(value)}" for name, value in values.items()]
    said = " ".join([*begin, *rest])
    return said if exception is None else f"{said}\n{exception}"


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_quoted, value)) or "-"
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Errors


def _error(told: object) -> BaseException | None:
    if isinstance(told, tuple):
        told = told[1]
    elif told is True:
        told = sys.exc_info()[1]
    return told if isinstance(told, BaseException) else None


def described(error: BaseException) -> str:
    """Where an error came from and what it is; its words only where they are Hermes' own."""
    return "\n".join(_description(error, set()))


def _description(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _description(cause, seen)
        yield "and then:"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}"
    yield user_code.loggable(error)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            if id(each) not in seen:
                yield from (f"  {text}" for text in _description(each, seen))
