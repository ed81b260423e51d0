"""The OpenAPI document, generated from the table of endpoints and the types of their data."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import trio
from starlette.responses import Response

from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.messages import JsonObject

VERSION = "1"
REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_GROUPS = {"v1": "OpenAI", "api": "Hermes", "hooks": "Webhooks"}
IDEMPOTENCY_KEY: JsonObject = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A request that is sent again with the same key is processed once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
LAST_EVENT_ID: JsonObject = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that the client has received.",
    "schema": {"type": "string", "pattern": "^[!-~]*$"},
}


class ErrorDetails(msgspec.Struct):
    """Why a request was refused: one sentence, and codes for programs."""

    message: str
    type: str
    code: str | None
    param: str | None


class Error(msgspec.Struct):
    """The body of every response that is an error."""

    error: ErrorDetails


def document(endpoints: Sequence[Endpoint]) -> JsonObject:
    """Return the OpenAPI 3.1 document of these endpoints."""
    types = {
        _name(each): each
        for endpoint in endpoints
        for each in (
            endpoint.body,
            endpoint.query,
            endpoint.result,
            *endpoint.other_results.values(),
            *endpoint.events,
            Error,
        )
        if each is not None
    }
    references, schemas = msgspec.json.schema_components(
        types.values(), schema_hook=_any_value, ref_template=REF
    )
    refs = dict(zip(types, references, strict=True))
    paths: dict[str, JsonObject] = {}
    for endpoint in endpoints:
        described = _operation(endpoint, refs, schemas)
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hermes",
            "version": VERSION,
            "description": "The HTTP API of a Hermes runtime. See docs/http.md.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"Error": _json("The request was refused.", refs[_name(Error)])},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _any_value(kind: type) -> JsonObject:
    """Return the schema of a value that an agent chooses."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _name(kind: Any) -> str:
    return repr(kind)


def _operation(
    endpoint: Endpoint, refs: Mapping[str, JsonObject], schemas: Mapping[str, JsonObject]
) -> JsonObject:
    operation: JsonObject = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [_GROUPS.get(endpoint.path.split("/")[1], "Server")],
        "parameters": _parameters(endpoint, refs, schemas),
        "responses": _responses(endpoint, refs),
        "security": [] if endpoint.role is None else [{"token": []}],
    }
    if endpoint.role is not None:
        operation["description"] = f"The token needs the role `{endpoint.role}`."
        operation["x-hermes-role"] = endpoint.role
    if endpoint.body is not None:
        content = {"application/json": {"schema": refs[_name(endpoint.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def operation_id(endpoint: Endpoint) -> str:
    """Return the name of an endpoint, which is unique."""
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *words])


def _parameters(
    endpoint: Endpoint, refs: Mapping[str, JsonObject], schemas: Mapping[str, JsonObject]
) -> list[JsonObject]:
    found: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        schema = schemas[refs[_name(endpoint.query)]["$ref"].rpartition("/")[2]]
        required = schema.get("required", [])
        found += [
            {"name": name, "in": "query", "required": name in required, "schema": each}
            for name, each in schema["properties"].items()
        ]
    headers = ((endpoint.idempotency_key, IDEMPOTENCY_KEY), (endpoint.events, LAST_EVENT_ID))
    return [*found, *(header for given, header in headers if given)]


def _responses(endpoint: Endpoint, refs: Mapping[str, JsonObject]) -> JsonObject:
    content: JsonObject = {}
    if endpoint.result is not None:
        content["application/json"] = {"schema": refs[_name(endpoint.result)]}
    elif not endpoint.events:
        content["application/json"] = {}
    content |= {media_type: {} for media_type in endpoint.media_types}
    if endpoint.streams:
        events = [refs[_name(each)] for each in endpoint.events]
        described = "Server-sent events; the data of each is JSON."
        schema: JsonObject = {"type": "string", "description": described}
        content["text/event-stream"] = {"schema": schema, "x-hermes-events": events}
    success = {"description": "Success.", "content": content}
    others = {
        str(code): _json("Success.", refs[_name(result)])
        for code, result in endpoint.other_results.items()
    }
    error = {"$ref": "#/components/responses/Error"}
    return {str(endpoint.status): success, **others, "4XX": error, "5XX": error}


def _json(description: str, schema: JsonObject) -> JsonObject:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def table(endpoints: Sequence[Endpoint]) -> str:
    """Return the endpoints as a table in Markdown, for docs/http.md."""
    rows = ["| request | role | what it does |", "|---|---|---|"]
    for endpoint in endpoints:
        notes = " (`Idempotency-Key`)" if endpoint.idempotency_key else ""
        summary = endpoint.summary.rstrip(".") + notes
        role = endpoint.role or "none"
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        rows.append(f"| `{endpoint.method} {path}` | {role} | {summary} |")
    return "\n".join(rows)


def endpoint(others: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint of the document, which describes it and the other endpoints.

    It needs no token: the document has nothing that the source code does not say.
    """

    async def get_document(call: Call) -> Response:
        del call
        await trio.lowlevel.checkpoint()
        return json_response(written())

    @functools.cache
    def written() -> JsonObject:
        return document([*others, described])

    described = Endpoint(
        method="GET",
        path="/api/openapi.json",
        handle=get_document,
        summary="Return the OpenAPI document.",
        role=None,
        result=dict[str, Any],
    )
    return described
