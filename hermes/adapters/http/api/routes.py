"""The table of the API's endpoints."""

from __future__ import annotations

from hermes.adapters.http.api import (
    approvals,
    choices,
    conversations,
    edits,
    exports,
    messages,
    operators,
    rpc,
    verbs,
)
from hermes.adapters.http.api.live import routes as live
from hermes.adapters.http.api.streams import events, multiplex
from hermes.adapters.http.api.turns import routes as turns
from hermes.adapters.http.endpoints import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *conversations.ENDPOINTS,
    *exports.ENDPOINTS,
    *events.ENDPOINTS,
    *multiplex.ENDPOINTS,
    *messages.ENDPOINTS,
    *edits.ENDPOINTS,
    *verbs.ENDPOINTS,
    *approvals.ENDPOINTS,
    *choices.ENDPOINTS,
    *operators.ENDPOINTS,
    *turns.ENDPOINTS,
    *live.ENDPOINTS,
    *rpc.ENDPOINTS,
)
