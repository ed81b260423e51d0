"""`/healthz` and `/readyz`."""

from __future__ import annotations

import trio
from starlette.responses import PlainTextResponse, Response

from hermes.adapters.http.endpoints import Call, Endpoint


async def healthz(call: Call) -> Response:
    """Answer: the process and its event loop live."""
    del call
    await trio.lowlevel.checkpoint()
    return PlainTextResponse("ok\n")


async def readyz(call: Call) -> Response:
    """Answer with 200 if requests can be served, else with 503."""
    services = call.services
    ready = await services.readiness.check(services.runtime, services.process)
    if ready and not services.draining.is_set():
        return PlainTextResponse("ready\n")
    return PlainTextResponse("not ready\n", 503)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="/healthz", handle=healthz, role=None,
             summary="Whether the process lives."),
    Endpoint(method="GET", path="/readyz", handle=readyz, role=None,
             summary="Whether requests can be served: 503 during a shutdown, or if the store "
                     "cannot commit."),
)  # fmt: skip
