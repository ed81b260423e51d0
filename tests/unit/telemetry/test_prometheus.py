"""The metrics in the text format of Prometheus, and in the documentation."""

from __future__ import annotations

import math
import re
from pathlib import Path

from hypothesis import given, strategies as st
from msgspec.structs import replace

from hermes.messages import OutboxStats, Reply
from hermes.run import telemetry
from hermes.telemetry.histograms import TURN_FAMILIES
from hermes.telemetry.metrics import Metrics
from hermes.telemetry.prometheus import FAMILIES, markdown_table, prometheus_text

DOCS = Path(__file__).parents[3] / "docs"
METRICS = Metrics(version="1.2", pid=1, started_at=1000.0, written_at=2000.0)

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text):
    """Parse the text format strictly and independently of prometheus_client."""
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
            family = name if name in kinds else re.sub("_(sum|count|bucket)$", "", name)
            assert family == name or kinds[family] in {"summary", "histogram"}
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


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
metrics_strategy = st.builds(
    replace,
    st.just(METRICS),
    turns=st.dictionaries(names, st.integers(0, 10**9), max_size=3),
    errors=st.dictionaries(names, st.integers(0, 10**9), max_size=3),
    adapters=st.dictionaries(names, names, max_size=3),
    commit_p50=st.floats(),
    cost=st.floats(),
    outbox=st.lists(names, max_size=3, unique=True).map(
        lambda platforms: tuple(OutboxStats(platform=each, pending=2) for each in platforms)
    ),
)


@given(metrics_strategy)
def test_any_metrics_can_be_parsed(metrics):
    kinds, samples = parsed(prometheus_text(metrics))
    assert list(kinds) == [family.name for family in FAMILIES]
    for name, count in metrics.errors.items():
        assert samples["hermes_errors_total", (("kind", name),)] == count
    for name, state in metrics.adapters.items():
        assert samples["hermes_adapter", (("adapter", name), ("state", state))] == 1
    for each in metrics.outbox:
        key = (("platform", each.platform), ("state", "pending"))
        assert samples["hermes_outbox", key] == 2
    cost = samples["hermes_cost_total", ()]
    assert cost == metrics.cost or (math.isnan(cost) and math.isnan(metrics.cost))


def test_known_labels_are_there_from_the_start():
    _, samples = parsed(prometheus_text(METRICS))
    assert samples["hermes_turns_total", (("status", "failed"),)] == 0
    assert samples["hermes_agent_builds_total", (("reason", "foreign-write"),)] == 0
    assert samples["hermes_commit_seconds", (("quantile", "0.99"),)] == 0
    assert samples["hermes_commit_seconds_count", ()] == 0
    assert samples["hermes_info", (("version", "1.2"),)] == 1


def test_names_follow_the_conventions_and_labels_are_as_documented():
    metrics = replace(
        METRICS, outbox=(OutboxStats(platform="x"),), errors={"E": 1}, adapters={"a": "b"}
    )
    for family in FAMILIES:
        assert family.name.startswith("hermes_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        bound = {"le"} if family.kind == "histogram" else set()
        labels = {
            tuple(n for n in each if n not in bound) for _, each, _ in family.samples(metrics)
        }
        assert labels - {()} == ({family.labels} if family.labels else set())


def test_the_docs_have_the_current_table():
    page = (DOCS / "operating.md").read_text()
    table = markdown_table([*FAMILIES, *TURN_FAMILIES])
    assert table in page, f"update the table:\n{table}"


async def test_the_docs_name_every_field_of_the_line_of_a_turn():
    page = (DOCS / "operating.md").read_text()
    values = telemetry._turn_values(
        telemetry._Turn(0.0, 0.0), Reply(text="", session_id="", turn_id=1)
    )
    for name in (*values, "session_key", "session_id", "turn_id", "platform", "status", "error"):
        assert f"`{name}`" in page
