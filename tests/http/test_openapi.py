"""The OpenAPI document: complete, valid, and true for random requests."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hermes.adapters.http.api.openapi import document, operation_id
from hermes.adapters.http.app import ENDPOINTS
from tests.support.http import http_server, new_token

NAME = "name:tried"
PATHS = ("/api/", "/v1/")
CHECKS = (content_type_conformance, response_schema_conformance, status_code_conformance)


def written():
    """The document as a client reads it."""
    return msgspec.json.decode(msgspec.json.encode(document(ENDPOINTS)))


def test_every_endpoint_is_described_once():
    described = document(ENDPOINTS)
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    assert len(operations) == len(ENDPOINTS)
    names = [operation["operationId"] for operation in operations]
    assert sorted(names) == sorted({operation_id(endpoint) for endpoint in ENDPOINTS})
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace(":path}", "}")
        operation = described["paths"][path][endpoint.method.lower()]
        assert operation.get("x-hermes-role") == endpoint.role
        assert bool(operation["security"]) == (endpoint.role is not None)


def test_the_document_is_printed():
    program = [sys.executable, "-m", "hermes.adapters.http", "--openapi"]
    printed = subprocess.run(program, capture_output=True, check=True).stdout
    assert msgspec.json.decode(printed) == written()


async def test_the_document_needs_no_token(path):
    async with http_server(path) as server:
        response = await server.http("wrong").get("/api/openapi.json")
        assert response.json() == written()


@pytest.mark.parametrize("mode", list(GenerationMode))
async def test_random_requests_get_what_the_document_says(path, mode):
    raw = written()
    streams = {endpoint.path for endpoint in ENDPOINTS if endpoint.events}
    raw["paths"] = {
        name: {method: {**each, "security": []} for method, each in methods.items()}
        for name, methods in raw["paths"].items()
        if name not in streams and name.startswith(PATHS)
    }
    async with http_server(path) as server:
        secret = await new_token(server.runtime, "op", roles=("operator", "user"))
        client = server.http(secret)
        await client.post(f"/api/conversations/{NAME}/messages", json={"text": "hello"})
        seen = await trio.to_thread.run_sync(try_all, raw, server.url, secret, mode)
        assert ({200} if mode is GenerationMode.POSITIVE else {400}) <= seen


def try_all(raw, url, secret, mode):
    """Send a few requests to each operation, and check what comes back. Return the codes."""
    schema, seen = schemathesis.openapi.from_dict(raw), set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # it has nothing that could be wrong
        try_one(operation, url, secret, mode, seen)
    return seen


def try_one(operation, url, secret, mode, seen):
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=1, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def run(case):
        if mode is GenerationMode.POSITIVE and "key" in (case.path_parameters or {}):
            case.path_parameters["key"] = NAME
        response = case.call(base_url=url, headers={"Authorization": f"Bearer {secret}"})
        seen.add(response.status_code)
        assert response.status_code < 500, (case.method, case.path, response.text)
        case.validate_response(response, checks=CHECKS)

    run()
