"""`/metrics`: the metrics of the runtime, and those of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.responses import Response

from hermes.adapters.http.endpoints import Call, Endpoint, Services
from hermes.telemetry.prometheus import MetricFamily, Sample, render

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def show(call: Call) -> Response:
    """Return all metrics."""
    text = await call.services.collected.metrics_text() + render(HTTP_FAMILIES, call.services)
    return Response(text, media_type=CONTENT_TYPE)


def _requests(services: Services) -> Iterable[Sample]:
    for (route, status), count in services.answered.items():
        yield "", {"route": route, "status": str(status)}, float(count)


def _count(name: str) -> Callable[[Services], Iterable[Sample]]:
    return lambda services: [("", {}, float(services.counters[name]))]


HTTP_FAMILIES: tuple[MetricFamily[Services], ...] = (
    MetricFamily(
        "hermes_http_requests_total",
        "counter",
        "Answered requests; `none` if the client left before.",
        _requests,
        ("route", "status"),
    ),
    MetricFamily(
        "hermes_http_streams",
        "gauge",
        "Requests and streams that are open.",
        lambda services: [("", {}, float(services.requests.count()))],
    ),
    MetricFamily(
        "hermes_http_failed_logins_total",
        "counter",
        "Requests with a token that is not valid.",
        lambda services: [("", {}, float(services.logins.failures))],
    ),
    MetricFamily(
        "hermes_retries_attached_total",
        "counter",
        "Retries of an SDK that were attached to the response to an earlier request.",
        _count("retries_attached"),
    ),
    MetricFamily(
        "hermes_idempotent_repeats_total",
        "counter",
        "Requests with the `Idempotency-Key` of an earlier one.",
        _count("idempotent_repeats"),
    ),
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/metrics",
        handle=show,
        summary="Return the metrics in Prometheus' text format.",
        role="metrics",
    ),
)
