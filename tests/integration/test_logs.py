"""The log: one line per event, without content or secrets, and nothing waits for it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import structlog
from hypothesis import example, given, settings, strategies as st

from hermes.errors import StoreBusy
from hermes.run import logs

SECRET = "canary-5ecret-v4lue"
BODY = "the words of a user"


class Written:
    """The lines written so far."""

    def __init__(self, stream):
        self.stream = stream

    @property
    def lines(self):
        handler().flush(30)
        return self.stream.getvalue().splitlines()

    @property
    def values(self):
        return [json.loads(each) for each in self.lines]


def handler():
    handlers = logging.getLogger().handlers
    [found] = [each for each in handlers if isinstance(each, logs.LogHandler)]
    return found


@contextmanager
def unchanged():
    """Restore the logging of this process afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("hermes")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    try:
        yield
    finally:
        for each in root.handlers:
            if isinstance(each, logs.LogHandler):
                each.close()
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        structlog.reset_defaults()


@pytest.fixture
def configured():
    """Configure the log of this process for one test."""

    def configure(form="json", level="info", stream=None):
        stream = io.StringIO() if stream is None else stream
        logs.configure(form=form, level=level, secrets=[SECRET], stream=stream)
        return Written(stream)

    with unchanged():
        yield configure


def fail(error, cause=None):
    raise error from cause


def test_a_text_line_has_time_level_logger_and_event(configured):
    written = configured("text")
    logging.getLogger("hermes.store").warning("a sweep failed: %s", "busy")
    logs.event_logger("hermes.turns")(
        "turn", status="complete", ran=1.25, cost=None, tools=["a", "b c"]
    )
    first, second = written.lines
    assert first.split(" ", 1)[1] == "warning hermes.store a sweep failed: busy"
    assert second.split(" ", 1)[1] == (
        'info hermes.turns turn status=complete ran=1.25 cost=- tools=a,"b c"'
    )
    assert first[:2] == "20"
    assert first.split(" ")[0].endswith("Z")


def test_a_json_line_has_the_same_fields(configured):
    written = configured("json")
    logging.getLogger("hermes.store").warning("a sweep failed: %s", "busy")
    logs.event_logger("hermes.turns")(
        "turn", status="complete", ran=1.25, tools=["a"], n=3, ok=True
    )
    first, second = written.values
    assert (first["level"], first["logger"], first["event"]) == (
        "warning", "hermes.store", "a sweep failed: busy",
    )  # fmt: skip
    assert second.items() >= {"status": "complete", "ran": 1.25, "tools": ["a"], "n": 3}.items()
    assert second["ok"] is True


METADATA = {"tenant": "acme", "trace": {"id": 7, "note": f"a {SECRET}\nb"}}


def log_with_metadata():
    log = logging.getLogger("hermes.actors")
    log.error("turn %d failed", 3, extra={"metadata": METADATA})
    log.error("turn %d failed", 4, extra={"metadata": {}})


def test_metadata_is_part_of_a_json_line(configured):
    written = configured()
    log_with_metadata()
    logs.event_logger("hermes.turns")("turn", metadata=METADATA)
    with_metadata, without, event = written.values
    assert with_metadata["metadata"] == event["metadata"]
    assert event["metadata"]["tenant"] == "acme"
    assert event["metadata"]["trace"]["id"] == 7
    assert "metadata" not in without
    assert SECRET not in str(written.lines)


def test_metadata_is_part_of_a_text_line_with_its_names(configured):
    written = configured("text")
    log_with_metadata()
    first, second = written.lines
    assert "turn 3 failed metadata.tenant=acme metadata.trace.id=7 metadata.trace.note=" in first
    assert second.endswith("turn 4 failed")
    assert SECRET not in first


def test_of_other_libraries_only_warnings_are_logged(configured):
    written = configured(level="debug")
    logging.getLogger("httpx2").info("GET https://api.example/bot%s", SECRET)
    logging.getLogger("hermes.x").debug("seen")
    logging.getLogger("httpx2").warning("GET https://api.example/bot%s", SECRET)
    assert [value["event"] for value in written.values] == [
        "seen", "GET https://api.example/bot[redacted]",
    ]  # fmt: skip


def test_colours_are_used_at_a_terminal_only(configured):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert "\x1b" not in _warned(configured("text"))
    assert "\x1b" in _warned(configured("text", stream=Terminal()))


def _warned(written):
    logging.getLogger("hermes.x").warning("careful")
    return "\n".join(written.lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_has_places_and_classes_but_no_messages(configured, form):
    written = configured(form)
    try:
        try:
            fail(ValueError(BODY))
        except ValueError as error:
            fail(ExceptionGroup(BODY, [KeyError(BODY), OSError(13, "Denied", BODY)]), error)
    except ExceptionGroup:
        logging.getLogger("hermes.x").exception("it failed")
    text = "\n".join(written.lines)
    assert "test_logs.py" in text
    assert "ValueError" in text
    assert "KeyError" in text
    assert "PermissionError: Denied" in text
    # The quoted source of this test names the variable; its value is nowhere.
    assert BODY not in text


def test_messages_of_the_stores_own_errors_are_logged(configured):
    written = configured()
    try:
        fail(StoreBusy("the file is in use"))
    except StoreBusy:
        logging.getLogger("hermes.x").exception("it failed")
    assert written.values[0]["exception"].endswith("StoreBusy: the file is in use")


def test_a_long_traceback_is_shortened_and_keeps_no_part_of_a_secret(configured):
    written = configured()
    log = logging.getLogger("hermes.x")
    for at in range(3000, 4000, 15):  # the cut is somewhere in there, as long as the frames are
        try:
            fail(StoreBusy("x" * at + SECRET + "y" * 9000))
        except StoreBusy:
            log.exception("it failed")
    log.warning("%s%s%s", "z" * 990, SECRET, "z" * 2000)
    *failed, warned = written.values
    assert all(len(each["exception"]) < logs.MAX_TRACEBACK + 100 for each in failed)
    assert len(warned["event"]) < logs.MAX_VALUE + 100
    assert not re.search("cana|ary-|5ecr|v4lue", "\n".join(written.lines))


def test_a_circular_chain_of_exceptions_ends(configured):
    written = configured()
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    logging.getLogger("hermes.x").error("it failed", exc_info=first)
    assert written.values[0]["exception"] == "KeyError\nfollowed by:\nValueError"


HOSTILE = st.text(st.characters(exclude_categories=[]), max_size=60)


@settings(max_examples=100)
@example("a\u2028b\u2029c\x85d\u202ee", "\u2028 f=g", "\x1b[2J\ud800\ufeff")
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_value_can_imitate_another_line(event, value, key):
    for form in ("text", "json"):
        written = _rendered(form, event, value, key)
        lines = written.split("\n")
        assert all(line.startswith(logs.CONTINUATION) for line in lines[1:])
        assert len(written.splitlines()) == len(lines)
        assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in "".join(lines))
        assert "\u202e" not in written
        if form == "json":
            assert len(lines) == 1
            assert json.loads(written)


def _rendered(form, event, value, key):
    """Return what is written for one record."""
    with unchanged():
        stream = io.StringIO()
        logs.configure(form=form, level="info", secrets=[SECRET], stream=stream)
        try:
            fail(StoreBusy(value))
        except StoreBusy:
            logger = structlog.stdlib.get_logger("hermes.x")
            logger.error(event, value=value, session_key=key, exc_info=True)
        handler().flush(30)
        return stream.getvalue().removesuffix("\n")


class Stuck(io.StringIO):
    """A stream that blocks until it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()
        self.entered = threading.Event()

    def write(self, text):
        self.entered.set()
        self.released.wait()
        return super().write(text)


def test_logging_never_waits_for_a_stuck_stream_and_dropped_lines_are_counted(configured):
    stream = Stuck()
    written = configured(stream=stream)
    log = logging.getLogger("hermes.x")
    log.warning("first")
    assert stream.entered.wait(30)
    for number in range(logs.MAX_QUEUED + 7):
        log.warning("line %d", number)
    # Nothing has waited for the stream, which is still stuck.
    assert not stream.released.is_set()
    assert logs.dropped() == 7
    stream.released.set()
    values = written.values
    assert len(values) == 1 + logs.MAX_QUEUED + 1
    assert values[-1]["event"] == "dropped 7 lines: the log is too slow"
    log.warning("last")
    assert written.values[-1]["event"] == "last"


def test_dropped_lines_are_reported_while_the_queue_is_never_empty(configured):
    stream = Stuck()
    written = configured(stream=stream)
    log = logging.getLogger("hermes.x")
    log.warning("first")
    assert stream.entered.wait(30)
    for number in range(3 * logs.MAX_QUEUED):
        log.warning("line %d", number)
    stream.released.set()
    reports = [value for value in written.values if "too slow" in value["event"]]
    assert reports[0]["event"] == f"dropped {2 * logs.MAX_QUEUED} lines: the log is too slow"
    assert written.values[1] == reports[0]


def test_python_exits_although_the_stream_is_stuck():
    reader, writer = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", STUCK], stderr=writer, timeout=60, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 3


STUCK = """
import logging, sys
from hermes.run import logs
logs.FLUSH_TIMEOUT = 0.1
logs.configure(form="text", level="info", secrets=[], stream=sys.stderr)
for number in range(1000):
    logging.getLogger("hermes.x").info("x" * 1000)
sys.exit(3)
"""


def test_a_closed_stream_is_ignored(configured):
    stream = io.StringIO()
    configured(stream=stream)
    stream.close()
    logging.getLogger("hermes.x").warning("anybody?")
    written = threading.Event()
    handler()._lines.put(written)
    assert written.wait(30)  # the thread is alive


def test_a_log_call_with_wrong_arguments_is_logged(configured):
    written = configured()
    logging.getLogger("hermes.x").warning("%d and %d", 1)  # noqa: PLE1206
    assert written.values[0]["event"] == "could not format a log record of hermes.x: TypeError"


ENDS = f"""
import logging, sys, threading
from hermes.run import logs
logs.configure(form=sys.argv[1], level="info", secrets=[{SECRET!r}], stream=sys.stderr)
logging.getLogger("hermes.x").info("begun")

def fail():
    raise KeyError("{SECRET}")

thread = threading.Thread(target=fail)
thread.start()
thread.join()

class Odd:
    def __del__(self):
        raise KeyError("{SECRET}")

Odd()
raise ValueError("{SECRET}")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unhandled_exception_is_logged_like_any_other(form):
    done = subprocess.run(
        [sys.executable, "-c", ENDS, form],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "canary" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("unhandled exception") == 3
    assert done.stderr.count("KeyError") == 2
    assert done.stderr.count("ValueError") >= 1


def test_ctrl_c_is_not_logged():
    code = ENDS.replace("raise ValueError", "raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-c", code, "text"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr.count("unhandled exception") == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_is_redacted_in_unusual_places(configured, form):
    written = configured(form)
    logs.event_logger("hermes.x")("event", **{SECRET: 1})
    logging.getLogger(f"hermes.{SECRET}").warning("the name of a logger")
    assert "canary" not in "\n".join(written.lines)
    assert "\n".join(written.lines).count("[redacted]") == 2
