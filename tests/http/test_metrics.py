"""`/metrics`: for tokens with the role `metrics` only, with histograms and without ids."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hermes import TurnResult
from hermes.adapters.http.metrics import HTTP_FAMILIES
from hermes.events import AssistantMessage, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall, Usage
from hermes.telemetry.histograms import TURN_FAMILIES
from hermes.telemetry.prometheus import FAMILIES, markdown_table
from tests.support.http import http_server, new_token

DOCS = Path(__file__).parents[2] / "docs"


async def model(turn):
    """Answers as a model with a tool does."""
    call = ToolCall("c1", "look", "{}")
    turn.emit(AssistantMessage(Message("assistant", None, tool_calls=(call,))))
    turn.emit(ToolStarted(call))
    turn.emit(ToolFinished("c1", "seen"))
    turn.emit(TextDelta("done"))
    for _ in range(2):
        turn.charge(Usage(model="m1", input_tokens=1, output_tokens=1))
    return TurnResult(text="done")


async def scraped(server):
    secret = await new_token(server.runtime, "prometheus", roles=("metrics",))
    answer = await server.http(secret).get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.text


async def test_only_the_role_of_metrics_reads_them(path):
    async with http_server(path) as server:
        operator = await new_token(server.runtime, "root", roles=("operator",))
        for secret, status in ((None, 403), (operator, 403), ("wrong", 401)):
            assert (await server.http(secret).get("/metrics")).status_code == status
        text = await scraped(server)
        assert 'hermes_http_requests_total{route="/metrics",status="403"} 2.0' in text
        assert "hermes_http_failed_logins_total 1.0" in text
        assert "hermes_http_streams 1.0" in text


async def test_turns_are_counted_in_histograms(path):
    async with http_server(path, model) as server:
        await server.openai().responses.create(model="hermes", input="hello")
        await server.http().get("/nowhere/at/all")
        text = await scraped(server)
        for line in (
            'hermes_turns_total{status="complete"} 1.0',
            'hermes_turn_seconds_count{platform="http",status="complete"} 1.0',
            'hermes_turn_seconds_bucket{le="+Inf",platform="http",status="complete"} 1.0',
            'hermes_queue_seconds_count{platform="http"} 1.0',
            'hermes_model_call_seconds_count{model="m1"} 2.0',
            'hermes_first_token_seconds_count{model="m1"} 1.0',
            "hermes_commit_duration_seconds_count 1.0",
            'hermes_http_requests_total{route="/v1/responses",status="200"} 1.0',
            'hermes_http_requests_total{route="other",status="404"} 1.0',
        ):
            assert line in text, line


async def test_no_label_contains_an_id_or_a_secret(path):
    async with http_server(path) as server:
        answer = await server.openai().responses.create(model="hermes", input="hello")
        await server.http().get(f"/v1/responses/{answer.id}")
        await server.http().get(f"/v1/files/file_{'0' * 32}")
        text = await scraped(server)
        assert 'route="/v1/responses/{response_id}"' in text
        labels = "".join(re.findall(r"\{.*\}", text))
        assert re.search("[0-9a-f]{16}|ann|hello", labels) is None


async def test_a_retry_that_is_attached_is_counted(path):
    async with http_server(path) as server:
        client = server.openai()
        for _ in range(2):
            await client.responses.create(
                model="hermes", input="hello", extra_headers={"Idempotency-Key": "k1"}
            )
        assert "hermes_idempotent_repeats_total 1.0" in await scraped(server)


def test_the_docs_have_the_current_table():
    table = markdown_table(HTTP_FAMILIES)
    assert table in (DOCS / "http.md").read_text(), f"update the table:\n{table}"


def test_the_dashboard_shows_metrics_that_exist():
    dashboard = json.loads((DOCS.parent / "deploy" / "grafana.json").read_text())
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"hermes_\w+", target["expr"])
    }
    known = {family.name: family.kind for family in (*FAMILIES, *TURN_FAMILIES, *HTTP_FAMILIES)}
    histograms = {f"{name}_bucket" for name, kind in known.items() if kind == "histogram"}
    assert shown <= known.keys() | histograms
    assert histograms <= shown
