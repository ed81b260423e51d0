"""Traces reach a collector of OpenTelemetry: OTLP over HTTP, to a receiver on loopback."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from hermes import TurnResult
from hermes.events import AssistantMessage, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall, Usage
from hermes.telemetry.otel import OtelConfig, open_tracing
from tests.support.http import http_server

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTENT = ("what a question", "what an answer", "what an argument", "what a result")


class Collector(ThreadingHTTPServer):
    """Takes the spans that are posted to it."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.headers = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    @property
    def spans(self):
        """The spans by name; a name that occurs twice has the last one."""
        return {
            span.name: span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.headers.append(dict(self.headers))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@contextmanager
def collecting():
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


async def model(turn):
    """Answers as a model with a tool does."""
    call = ToolCall("c1", "look", '{"where": "what an argument"}')
    turn.emit(AssistantMessage(Message("assistant", None, tool_calls=(call,))))
    turn.emit(ToolStarted(call))
    turn.emit(ToolFinished("c1", "what a result"))
    turn.emit(TextDelta("what an answer"))
    usage = Usage(model="m1", provider="openai", input_tokens=10, output_tokens=3)
    for _ in range(2):
        turn.charge(usage)
    return TurnResult(text="what an answer")


async def traced(path, collector, **options):
    """Send a request with a `traceparent`; returns its response."""
    with open_tracing(OtelConfig(endpoint=collector.url, **options)) as tracing:
        async with http_server(path, model) as server:
            await tracing.attach(server.runtime)
            client = server.http()
            answer = await client.post(
                "/v1/responses",
                json={"model": "hermes", "input": "what a question"},
                headers={"traceparent": f"00-{TRACE}-{SPAN}-01"},
            )
    assert tracing.dropped == 0
    return answer.json()


def values(span):
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def test_a_collector_gets_the_spans_of_a_request(path):
    with collecting() as collector:
        await traced(path, collector)
    spans = collector.spans
    assert sorted(spans) == [
        "chat m1", "execute_tool look", "hermes.commit", "hermes.turn", "invoke_agent hermes",
    ]  # fmt: skip
    turn, agent, commit = (
        spans[name] for name in ("hermes.turn", "invoke_agent hermes", "hermes.commit")
    )
    assert {span.trace_id for span in spans.values()} == {turn.trace_id}
    assert turn.parent_span_id == b""
    assert agent.parent_span_id == commit.parent_span_id == turn.span_id
    assert spans["chat m1"].parent_span_id == agent.span_id
    assert spans["execute_tool look"].parent_span_id == agent.span_id
    [link] = turn.links  # a request is linked: its turn may begin later, and is made once
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, SPAN)
    [resource] = [each.resource for each in collector.requests[0].resource_spans]
    assert values(resource)["service.name"] == "hermes"
    assert turn.start_time_unix_nano <= commit.start_time_unix_nano < commit.end_time_unix_nano
    assert commit.end_time_unix_nano <= turn.end_time_unix_nano


async def test_the_spans_have_the_names_of_the_conventions(path):
    with collecting() as collector:
        await traced(path, collector)
    spans = {name: values(span) for name, span in collector.spans.items()}
    for found in spans.values():
        assert found["session.id"] == spans["hermes.turn"]["session.id"]
        assert len(found["user.id"]) == 32  # a hash
    chat = spans["chat m1"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.provider.name"], chat["gen_ai.request.model"]) == ("openai", "m1")
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (10, 3)
    assert spans["invoke_agent hermes"]["gen_ai.agent.name"] == "hermes"
    assert spans["execute_tool look"]["gen_ai.tool.name"] == "look"
    assert spans["hermes.turn"]["hermes.platform"] == "http"
    assert spans["hermes.turn"]["hermes.status"] == "complete"


@pytest.mark.parametrize("content", [False, True])
async def test_what_is_sent_has_content_only_if_the_settings_say_so(path, content, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of-the-collector")
    with collecting() as collector:
        response = await traced(path, collector, content=content)
    sent = b"".join(request.SerializeToString() for request in collector.requests)
    for text in CONTENT:
        assert (text.encode() in sent) is content, text
    assert response["id"].encode() not in sent
    assert b"dm:ann" not in sent
    assert b"of-the-collector" not in sent
    assert collector.headers[0]["authorization"] == "Bearer of-the-collector"
