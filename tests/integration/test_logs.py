"""What the bot logs: one line for each thing, no bodies, no secrets, and nobody waits for it."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import structlog
from hypothesis import example, given, settings, strategies as st

from hermes.errors import StoreBusy
from hermes.run import logs

SECRET = "canary-5ecret-v4lue"
BODY = "the words of a user"


class Read:
    """What was written so far."""

    def __init__(self, stream):
        self.stream = stream

    @property
    def lines(self):
        sink().flush(30)
        return self.stream.getvalue().splitlines()

    @property
    def values(self):
        return [json.loads(each) for each in self.lines]


def sink():
    [found] = [each for each in logging.getLogger().handlers if isinstance(each, logs.Sink)]
    return found


@contextmanager
def unchanged():
    """The logging of this process, as it was before."""
    root, ours = logging.getLogger(), logging.getLogger("hermes")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    try:
        yield
    finally:
        for each in root.handlers:
            if isinstance(each, logs.Sink):
                each.close()
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        structlog.reset_defaults()


@pytest.fixture
def configured():
    """Configure the logs of this process, for the length of a test."""

    def configure(form="json", level="info", stream=None):
        stream = io.StringIO() if stream is None else stream
        logs.configure(form=form, level=level, secrets=[SECRET], stream=stream)
        return Read(stream)

    with unchanged():
        yield configure


def fail(error, cause=None):
    raise error from cause


def test_a_line_for_people_says_when_how_bad_who_and_what(configured):
    read = configured("text")
    logging.getLogger("hermes.store").warning("a sweep failed: %s", "busy")
    logs.line("hermes.turns")("turn", status="complete", ran=1.25, cost=None, tools=["a", "b c"])
    first, second = read.lines
    assert first.split(" ", 1)[1] == "warning hermes.store a sweep failed: busy"
    assert second.split(" ", 1)[1] == (
        'info hermes.turns turn status=complete ran=1.25 cost=- tools=a,"b c"'
    )
    assert first[:2] == "20"
    assert first.split(" ")[0].endswith("Z")


def test_a_line_of_json_has_the_same(configured):
    read = configured("json")
    logging.getLogger("hermes.store").warning("a sweep failed: %s", "busy")
    logs.line("hermes.turns")("turn", status="complete", ran=1.25, tools=["a"], n=3, ok=True)
    first, second = read.values
    assert (first["level"], first["logger"], first["event"]) == (
        "warning", "hermes.store", "a sweep failed: busy",
    )  # fmt: skip
    assert second.items() >= {"status": "complete", "ran": 1.25, "tools": ["a"], "n": 3}.items()
    assert second["ok"] is True


def test_of_other_libraries_only_warnings_are_written(configured):
    read = configured(level="debug")
    logging.getLogger("httpx2").info("GET https://api.example/bot%s", SECRET)
    logging.getLogger("hermes.x").debug("seen")
    logging.getLogger("httpx2").warning("GET https://api.example/bot%s", SECRET)
    assert [value["event"] for value in read.values] == [
        "seen", "GET https://api.example/bot[hidden]",
    ]  # fmt: skip


def test_no_colours_where_there_is_no_terminal_and_some_where_there_is(configured):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert "\x1b" not in _warned(configured("text"))
    assert "\x1b" in _warned(configured("text", stream=Terminal()))


def _warned(read):
    logging.getLogger("hermes.x").warning("careful")
    return "\n".join(read.lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_says_where_and_what_but_not_the_words(configured, form):
    read = configured(form)
    try:
        try:
            fail(ValueError(BODY))
        except ValueError as error:
            fail(ExceptionGroup(BODY, [KeyError(BODY), OSError(13, "Denied", BODY)]), error)
    except ExceptionGroup:
        logging.getLogger("hermes.x").exception("it failed")
    text = "\n".join(read.lines)
    assert "test_logs.py" in text
    assert "ValueError" in text
    assert "KeyError" in text
    assert "PermissionError: Denied" in text
    # The source of the test itself is quoted, and names the variable; the words are nowhere.
    assert BODY not in text


def test_the_words_of_the_store_are_its_own_and_are_written(configured):
    read = configured()
    try:
        fail(StoreBusy("the file is in use"))
    except StoreBusy:
        logging.getLogger("hermes.x").exception("it failed")
    assert read.values[0]["exception"].endswith("StoreBusy: the file is in use")


def test_a_long_traceback_is_cut_in_the_middle_and_keeps_no_half_of_a_secret(configured):
    read = configured()
    log = logging.getLogger("hermes.x")
    for at in range(3000, 4000, 15):  # the cut is somewhere in there, as long as the frames are
        try:
            fail(StoreBusy("x" * at + SECRET + "y" * 9000))
        except StoreBusy:
            log.exception("it failed")
    log.warning("%s%s%s", "z" * 990, SECRET, "z" * 2000)
    *failed, warned = read.values
    assert all(len(each["exception"]) < logs.MAX_TRACEBACK + 100 for each in failed)
    assert len(warned["event"]) < logs.MAX_TEXT + 100
    assert not re.search("cana|ary-|5ecr|v4lue", "\n".join(read.lines))


def test_a_chain_that_bites_its_own_tail_ends(configured):
    read = configured()
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    logging.getLogger("hermes.x").error("it failed", exc_info=first)
    assert read.values[0]["exception"] == "KeyError\nand then:\nValueError"


HOSTILE = st.text(st.characters(exclude_categories=[]), max_size=60)


@settings(max_examples=100)
@example("a\u2028b\u2029c\x85d\u202ee", "\u2028 f=g", "\x1b[2J\ud800\ufeff")
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_can_look_like_another_line(event, value, key):
    for form in ("text", "json"):
        written = _rendered(form, event, value, key)
        lines = written.split("\n")
        assert all(line.startswith(logs.CONTINUED) for line in lines[1:])
        assert len(written.splitlines()) == len(lines)
        assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in "".join(lines))
        assert "\u202e" not in written
        if form == "json":
            assert len(lines) == 1
            assert json.loads(written)


def _rendered(form, event, value, key):
    """One record through the pipeline."""
    with unchanged():
        stream = io.StringIO()
        logs.configure(form=form, level="info", secrets=[SECRET], stream=stream)
        try:
            fail(StoreBusy(value))
        except StoreBusy:
            logger = structlog.stdlib.get_logger("hermes.x")
            logger.error(event, value=value, session_key=key, exc_info=True)
        sink().flush(30)
        return stream.getvalue().removesuffix("\n")


class Stuck(io.StringIO):
    """A stream that takes nothing until it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.entered = threading.Event()

    def write(self, text):
        self.entered.set()
        self.go.wait(30)
        return super().write(text)


def test_nobody_waits_for_a_log_that_is_stuck_and_what_is_dropped_is_counted(configured):
    stream = Stuck()
    read = configured(stream=stream)
    log = logging.getLogger("hermes.x")
    log.warning("first")
    assert stream.entered.wait(30)
    begun = time.monotonic()
    for number in range(logs.MAX_WAITING + 7):
        log.warning("line %d", number)
    assert time.monotonic() - begun < 20  # nobody waited for the stream, which would be 30 each
    assert logs.dropped() == 7
    stream.go.set()
    values = read.values
    assert len(values) == 1 + logs.MAX_WAITING + 1
    assert values[-1]["event"] == "7 lines were dropped: too slow a log"
    log.warning("last")
    assert read.values[-1]["event"] == "last"


def test_a_log_that_is_gone_harms_nobody(configured):
    stream = io.StringIO()
    configured(stream=stream)
    stream.close()
    logging.getLogger("hermes.x").warning("anybody?")
    sink().flush(30)
    assert sink()._busy is False


def test_a_log_call_with_wrong_arguments_is_a_line_too(configured):
    read = configured()
    logging.getLogger("hermes.x").warning("%d and %d", 1)  # noqa: PLE1206
    assert read.values[0]["event"] == "a line of hermes.x could not be made: TypeError"


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
def test_what_ends_a_program_is_a_line_like_the_others(form):
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
    assert done.stderr.count("nobody caught this error") == 3
    assert done.stderr.count("KeyError") == 2
    assert done.stderr.count("ValueError") >= 1


def test_ctrl_c_is_no_error():
    code = ENDS.replace("raise ValueError", "raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-c", code, "text"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr.count("nobody caught this error") == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_is_hidden_where_nobody_looks_for_one(configured, form):
    read = configured(form)
    logs.line("hermes.x")("event", **{SECRET: 1})
    logging.getLogger(f"hermes.{SECRET}").warning("the name of a logger")
    assert "canary" not in "\n".join(read.lines)
    assert "\n".join(read.lines).count("[hidden]") == 2
