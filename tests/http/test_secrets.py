"""Secrets of requests are in no log, no answer and no file."""

from __future__ import annotations

import base64
import logging

import trio

from hermes.adapters.http import HttpConfig
from hermes.adapters.http.credentials import new_secret
from hermes.settings import Reference
from hermes.settings.http import HookTable
from tests.support.http import http_server

KEY = b"canary of a webhook"
HOOK = f"whsec_{base64.b64encode(KEY).decode()}"


async def failing(turn):
    if turn.text == "fail":
        raise RuntimeError("the agent failed")
    return f"echo: {turn.text}"


async def requests(server, wrong):
    """Send secrets in every place of a request; yields the answers."""
    right, unknown, bare = server.http(), server.http(wrong), server.http("none")
    del bare.headers["Authorization"]
    body = {"model": "hermes", "input": "hello"}
    for secret, client in ((server.secret, right), (wrong, unknown)):
        yield await client.post("/v1/responses", json=body)
        yield await client.post("/v1/responses", json={**body, "input": "fail"})
        yield await client.post("/v1/responses", content=b"{", headers={"Content-Type": "x/y"})
        yield await client.get("/v1/models", headers={"Host": secret})
        yield await client.get("/v1/models", headers={"Origin": f"https://{secret}"})
        yield await client.put("/v1/responses")
        yield await bare.get("/v1/models", params={"api_key": secret})
        yield await bare.get("/v1/models", headers={"Cookie": f"token={secret}"})
        yield await bare.get("/v1/models", headers={"Authorization": f"Basic {secret}"})
        yield await bare.get("/v1/models", headers={"Authorization": f"Bearer {secret} {secret}"})
    for _ in range(30):  # until wrong tokens are limited
        yield await unknown.get("/v1/models")
    headers = {"webhook-id": "1", "webhook-timestamp": "1", "webhook-signature": f"v1,{HOOK}"}
    yield await bare.post("/hooks/ci", content=b"x", headers=headers)


async def test_no_secret_leaves_the_server(path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HOOK", HOOK)
    config = HttpConfig(port=0, hooks={"ci": HookTable(secret=Reference("env:HOOK"))})
    wrong = new_secret()
    async with http_server(path, failing, config=config) as server:
        secrets = [server.secret, wrong, HOOK, KEY.decode()]
        with trio.fail_after(60):
            answers = [answer async for answer in requests(server, wrong)]
        await server.runtime.api.revoke_token("ann")
        assert {each.status_code for each in answers} >= {200, 401, 403, 405, 415, 421, 429}
        for answer in answers:
            shown = f"{answer.headers} {answer.text}"
            assert not [secret for secret in secrets if secret in shown]
    ours = [record for record in caplog.records if record.name.startswith(("hermes", "hypercorn"))]
    logged = "\n".join(logging.Formatter().format(record) for record in ours)
    assert not [secret for secret in secrets if secret in logged]
    for file in path.parent.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [secret for secret in secrets if secret.encode() in content]


def test_the_search_would_find_a_secret(caplog):
    logging.getLogger("hermes.adapters.http").warning("refused %s", HOOK)
    assert any(HOOK in record.getMessage() for record in caplog.records)
