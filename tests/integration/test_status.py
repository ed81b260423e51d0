"""`--status` from another process, and the Prometheus file."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from hermes.errors import StoreInUse
from hermes.messages import Inbound, OutboxStats
from hermes.run import prometheus as module, status
from hermes.run.metrics import Metrics
from hermes.run.prometheus import METRICS, prometheus
from hermes.store import SessionStore, file_lock

DOCS = Path(__file__).parents[2] / "docs"
FACTS = Metrics(version="1.2", pid=1, started_at=1000.0, written_at=2000.0)

BOT = """
import sys, trio
from pathlib import Path
from hermes import open_runtime
from hermes.run.telemetry import open_watch

async def reply(turn):
    return "fine"

async def main():
    path = Path(sys.argv[1])
    async with open_watch(path, write=lambda *_, **__: None, seconds=0.05) as watch:
        async with open_runtime(path, agent=reply) as runtime:
            watch.begin(runtime)
            await runtime.ask("k", "hello")
            await watch.write_files(runtime)
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(main)
"""


@pytest.fixture
def bot(path):
    """A bot on the test's file, which has answered once; it ends with its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", BOT, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


def files_of(path):
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


def test_a_bot_that_runs_is_reported_from_another_process(bot, path):
    text, code = status.report(path)
    assert code == 0
    assert text.startswith(f"Hermes runs on {path} (pid {bot.pid}).\n")
    assert "turns     1 complete; 0 running" in text
    assert "reused 0, built 1 cold" in text
    assert "inbox     0 waiting; 0 set aside within a day" in text
    found = json.loads(status.report(path, "json")[0])
    assert (found["running"], found["code"], found["problems"]) == (True, 0, [])
    assert found["facts"]["turns"] == {"complete": 1}
    assert found["facts"]["pid"] == bot.pid
    assert found["age_seconds"] < 60
    assert found["store"]["inbox_open"] == 0


def test_a_bot_that_ended_is_reported_as_such_and_nothing_is_touched(bot, path):
    bot.stdin.close()
    bot.wait(30)
    before = files_of(path)
    text, code = status.report(path)
    assert code == 1
    assert text.startswith(f"Hermes does not run on {path}.\ninbox     0 waiting")
    assert files_of(path) == before
    assert not status.status_path(path).exists()


def test_a_bot_that_was_killed_is_not_believed_to_run(bot, path):
    bot.send_signal(signal.SIGKILL)
    bot.wait(30)
    before = files_of(path)
    text, code = status.report(path)
    assert code == 1
    assert f"Hermes does not run on {path}." in text
    assert "ended without a farewell" in text
    assert "turns     1 complete" in text
    assert files_of(path).keys() == before.keys()
    assert files_of(path)["state.db"] == before["state.db"]
    assert files_of(path)["state.db-wal"] == before["state.db-wal"]


def test_looking_never_keeps_a_bot_from_starting(path):
    with SessionStore(path):
        pass
    looking = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from hermes.run import status\n"
            "print('ready', flush=True)\n"
            "while True: status.files.owner(status.Path(sys.argv[1]))",
            str(path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert looking.stdout.readline() == "ready\n"
        for _ in range(300):
            file_lock.RuntimeLock(path).close()
    finally:
        looking.kill()
        looking.wait(30)
        looking.stdout.close()


def test_a_second_runtime_is_still_refused_and_its_owner_named(path):
    lock = file_lock.RuntimeLock(path)
    try:
        assert file_lock.owner(path) == f"pid {os.getpid()}"
        with pytest.raises(StoreInUse):
            file_lock.RuntimeLock(path)
    finally:
        lock.close()
    assert file_lock.owner(path) is None


def test_a_silent_bot_is_not_healthy(bot, path):
    bot.send_signal(signal.SIGSTOP)
    try:
        file = status.status_path(path)
        facts = replace(status.read(file), written_at=time.time() - 100)
        status.write(file, status.encoded(facts))
        text, code = status.report(path)
    finally:
        bot.send_signal(signal.SIGCONT)
    assert code == 1
    assert "It has been silent since 100 seconds" in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "There is no status file."),
        (b"", "The status file is damaged; a running bot writes it anew."),
        (b"\xff\xfe{", "The status file is damaged; a running bot writes it anew."),
        (b'{"format": 1}', "The status file is damaged; a running bot writes it anew."),
        (b"[" * 100_000, "The status file is damaged; a running bot writes it anew."),
        (b'{"format": 2, "x": 1}', "The status file was written by a newer Hermes; update this"),
    ],
)
def test_a_status_file_that_says_nothing_is_one_sentence(path, content, told):
    with SessionStore(path):
        pass
    if content is not None:
        status.status_path(path).write_bytes(content)
    lock = file_lock.RuntimeLock(path)  # somebody runs, with a host of its own
    try:
        text, code = status.report(path)
    finally:
        lock.close()
    assert code == 0
    assert text.splitlines()[0].startswith(told)
    assert "inbox     0 waiting" in text


def test_a_database_that_cannot_be_read_is_one_sentence(path, sql):
    text, code = status.report(path)
    assert (text, code) == (f"{path} does not exist; the first start creates it.", 3)
    text, code = status.report(path.parent / "nowhere" / "x.db")
    assert (code, text.count("\n")) == (3, 0)
    assert "does not exist" in text
    path.write_bytes(b"no database at all" * 100)
    text, code = status.report(path)
    assert (code, text.count("\n")) == (3, 0)
    assert "no SQLite file" in text
    path.unlink()
    with SessionStore(path):
        pass
    sql("PRAGMA user_version = 999")
    text, code = status.report(path)
    assert (code, text.count("\n")) == (3, 0)
    assert "newer Hermes" in text
    assert json.loads(status.report(path, "json")[0])["code"] == 3


def test_what_waits_is_read_from_the_database_itself(path):
    with SessionStore(path) as store:
        for number in range(3):
            store.accept(Inbound("k", f"e{number}", "hello"))
        store.park_inbox([1], "begun too often")
        store.new_session("k")
        facts = store.facts()
        assert (facts.inbox_open, facts.hooks_open) == (2, len(store.pending_boundaries()))
    text, code = status.report(path)
    assert code == 1
    assert "inbox     2 waiting, the first since 0 seconds; 1 set aside within a day" in text


# Prometheus

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text):
    """What a reader of the text format makes of it; raises where it is not in the format."""
    assert text.endswith("\n")
    kinds, helps, samples = {}, set(), {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helps
            helps.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helps
            kinds[name] = kind
        else:
            name, labels, value = _sample(line)
            family = name if name in kinds else re.sub("_(sum|count)$", "", name)
            assert family == name or kinds[family] == "summary"
            assert (name, labels) not in samples
            samples[name, labels] = value
    return kinds, samples


def _sample(line):
    found = _SAMPLE.fullmatch(line)
    assert found, line
    labels, at = [], 0
    text = found["labels"] or ""
    while at < len(text):
        label = _LABEL.match(text, at)
        assert label, line
        value = re.sub(r'\\["\\n]', lambda escape: _ESCAPES[escape[0]], label["value"])
        labels.append((label["name"], value))
        at = label.end()
    return found["name"], tuple(labels), float(found["value"])


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
facts_of = st.builds(
    replace,
    st.just(FACTS),
    turns=st.dictionaries(names, st.integers(0, 10**9), max_size=3),
    errors=st.dictionaries(names, st.integers(0, 10**9), max_size=3),
    adapters=st.dictionaries(names, names, max_size=3),
    commit_p50=st.floats(),
    cost=st.floats(),
    outbox=st.lists(names, max_size=3, unique=True).map(
        lambda platforms: tuple(OutboxStats(platform=each, pending=2) for each in platforms)
    ),
)


@given(facts_of)
def test_whatever_the_facts_are_prometheus_can_read_them(facts):
    kinds, samples = parsed(prometheus(facts))
    assert list(kinds) == [metric.name for metric in METRICS]
    for name, count in facts.errors.items():
        assert samples["hermes_errors_total", (("kind", name),)] == count
    for name, state in facts.adapters.items():
        assert samples["hermes_adapter", (("adapter", name), ("state", state))] == 1
    for each in facts.outbox:
        key = (("platform", each.platform), ("state", "pending"))
        assert samples["hermes_outbox", key] == 2
    cost = samples["hermes_cost_total", ()]
    assert cost == facts.cost or (math.isnan(cost) and math.isnan(facts.cost))


def test_counters_that_are_known_are_there_from_the_beginning():
    _, samples = parsed(prometheus(FACTS))
    assert samples["hermes_turns_total", (("status", "failed"),)] == 0
    assert samples["hermes_agent_builds_total", (("reason", "foreign-write"),)] == 0
    assert samples["hermes_commit_seconds", (("quantile", "0.99"),)] == 0
    assert samples["hermes_commit_seconds_count", ()] == 0
    assert samples["hermes_info", (("version", "1.2"),)] == 1


def test_names_say_what_they_are_and_have_the_labels_they_are_said_to_have():
    facts = replace(
        FACTS, outbox=(OutboxStats(platform="x"),), errors={"E": 1}, adapters={"a": "b"}
    )
    for metric in METRICS:
        assert metric.name.startswith("hermes_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        labels = {tuple(name for name, _ in each) for _, each, _ in metric.samples(facts)}
        assert labels - {()} == ({metric.labels} if metric.labels else set())


def test_the_page_has_the_table_of_the_code():
    page = (DOCS / "operating.md").read_text()
    assert module.table() in page, "write the table anew: hermes.run.prometheus.table()"


async def test_the_page_names_every_field_of_a_turns_line():
    from hermes.messages import Reply
    from hermes.run import telemetry

    page = (DOCS / "operating.md").read_text()
    course = telemetry._course(telemetry._Turn(0.0, 0.0), Reply(text="", session_id="", turn_id=1))
    for name in (*course, "session_key", "session_id", "turn_id", "platform", "status", "error"):
        assert f"`{name}`" in page
