"""Host, Origin and Sec-Fetch-Site: what a web page may send, and what every response says."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import trio

from hermes.adapters.http import HttpConfig
from hermes.adapters.http.access.browsers import Browsers
from hermes.adapters.http.errors import ApiError
from tests.support.http import http_server

BODY = {"model": "hermes", "input": "hello"}
PAGE = "https://chat.example"


async def raw(server, text):
    """Send bytes on a connection of their own; returns the status and everything received."""
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(text.encode().replace(b"\n", b"\r\n"))
        received = b"".join([piece async for piece in stream])
    return int(received.split()[1]), received


@pytest.fixture
async def server(path):
    async with http_server(path) as opened:
        yield opened


@pytest.fixture
async def open_server(path):
    """One that pages of an origin may call, and that has another name."""
    config = HttpConfig(port=0, origins={PAGE}, hosts={"hermes.example"})
    async with http_server(path, config=config) as opened:
        yield opened


def port_of(server):
    return urlsplit(server.url).port


CLOSED = Browsers(HttpConfig())
OPEN = Browsers(HttpConfig(origins={PAGE}, hosts={"hermes.example"}))


def status_of(browsers, *headers, method="GET", path="/v1/models", kind="http"):
    """Return the status of the refusal, or 200."""
    scope = {
        "type": kind, "method": method, "path": path, "scheme": "http",
        "server": ("127.0.0.1", 8420),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }  # fmt: skip
    try:
        browsers.check(scope)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8420", "localhost:8420", "LocalHost:8420", "[::1]:8420"]
)
def test_names_of_this_machine_with_our_port_are_ours(name):
    assert status_of(CLOSED, ("host", name)) == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example:8420", "evil.example", "127.0.0.1", "localhost", "[::1]", "localhost:1", "",
        "localhost.:8420", "127.0.0.2:8420", "localhost:8420@evil.example", "localhost:8420:8420",
        ":8420", "127.0.0.1.evil.example:8420", "0.0.0.0:8420", "localhost:٨٤٢٠", "[::1:8420",
        "localhost:184200", "localhost:-8420", "hermes.example", " localhost:8420", "localhost:",
    ],
)  # fmt: skip
def test_other_names_are_refused(name):
    assert status_of(CLOSED, ("host", name)) == 421


def test_a_configured_name_is_ours_with_any_port():
    for name in ("hermes.example", "hermes.example:8443", "Hermes.Example", "localhost:8420"):
        assert status_of(OPEN, ("host", name)) == 200
    for name in ("a.hermes.example", "hermes.example.evil", "hermes.example:x", "hermes.example:"):
        assert status_of(OPEN, ("host", name)) == 421


def test_no_host_or_two_are_refused():
    assert status_of(CLOSED) == 421
    assert status_of(CLOSED, *[("host", "localhost:8420")] * 2) == 421


def test_the_address_that_the_server_is_told_to_listen_at_is_ours():
    public = Browsers(HttpConfig(host="10.0.0.5", public=True))
    assert status_of(public, ("host", "10.0.0.5:8420")) == 200
    assert status_of(public, ("host", "10.0.0.6:8420")) == 421
    named = Browsers(HttpConfig(host="MyBox.Local", public=True))
    assert status_of(named, ("host", "mybox.local:8420")) == 200
    every = Browsers(HttpConfig(host="0.0.0.0", public=True))
    assert status_of(every, ("host", "0.0.0.0:8420")) == 421


@pytest.mark.parametrize(
    "origin",
    [
        "null", PAGE, "http://127.0.0.1:1", "http://localhost", "http://localhost:8420", "",
        "http://evil.example", "file://", "http://127.0.0.1:8420.evil", "HTTP://127.0.0.1:8420/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_origins_than_ours_are_refused(origin, kind):
    headers = ("host", "127.0.0.1:8420"), ("origin", origin)
    for method in ("GET", "POST", "OPTIONS"):
        assert status_of(CLOSED, *headers, method=method, kind=kind) == 403
    ours = ("origin", "http://127.0.0.1:8420")
    assert status_of(CLOSED, headers[0], ours, kind=kind) == 200
    assert status_of(CLOSED, *headers, ours, kind=kind) == 403


@pytest.mark.parametrize(
    ("site", "status"),
    [("same-origin", 200), ("none", 200), ("cross-site", 403), ("same-site", 403), ("x", 403)],
)
def test_what_changes_something_must_not_come_from_another_site(site, status):
    headers = ("host", "127.0.0.1:8420"), ("sec-fetch-site", site)
    for method in ("POST", "DELETE", "PUT", "PATCH", "ANYTHING"):
        assert status_of(CLOSED, *headers, method=method) == status
    assert status_of(CLOSED, *headers, kind="websocket") == status
    assert status_of(CLOSED, *headers) == 200


# Through a server


async def test_a_foreign_name_is_refused_before_anything_else(server):
    for path in ("/v1/models", "/nothing", "/"):
        response = await server.http("wrong").get(path, headers={"Host": "evil.example"})
        assert response.status_code == 421
        assert response.json()["error"]["code"] == "unknown_host"


async def test_an_absolute_target_or_no_host_is_refused(server):
    ours = f"127.0.0.1:{port_of(server)}"
    for head in (
        f"GET http://{ours}/v1/models HTTP/1.1\nHost: {ours}",
        f"GET http://evil.example/v1/models HTTP/1.1\nHost: {ours}",
        "GET /v1/models HTTP/1.0\nAccept: */*",
        f"OPTIONS * HTTP/1.1\nHost: {ours}",
    ):
        text = f"{head}\nAuthorization: Bearer {server.secret}\nConnection: close\n\n"
        status, received = await raw(server, text)
        assert status == 421
        assert b"unknown_host" in received


async def test_forwarded_headers_are_ignored(server):
    forged = {"X-Forwarded-Host": "localhost", "Forwarded": "host=localhost", "Host": "evil"}
    assert (await server.http().get("/v1/models", headers=forged)).status_code == 421


async def test_our_own_origin_may_send_requests(server):
    headers = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    response = await server.http().post("/v1/responses", json=BODY, headers=headers)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


async def test_a_configured_origin_may_call_v1_only(open_server):
    client = open_server.http()
    headers = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    response = await client.post("/v1/responses", json=BODY, headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers
    for path in ("/api/conversations", "/metrics", "/hooks/x", "/v1x"):
        assert (await client.post(path, headers=headers)).status_code == 403
    refused = await open_server.http("wrong").get("/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE
    other = await client.get("/v1/models", headers={"Origin": f"{PAGE}.evil"})
    assert other.status_code == 403


async def test_a_preflight_is_answered_for_configured_origins(open_server):
    asked = {
        "Origin": PAGE, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }  # fmt: skip
    client = open_server.http("none")
    response = await client.options("/v1/responses", headers=asked)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = response.headers["access-control-allow-headers"]
    assert allowed == "authorization,content-type,x-stainless-lang"
    assert (await client.options("/api/status", headers=asked)).status_code == 403


async def test_every_response_has_the_security_headers(server):
    client = server.http()
    responses = [
        await client.get("/v1/models"),
        await client.post("/v1/responses", json=BODY),
        await client.get("/nothing"),
        await client.put("/v1/responses"),
        await client.get("/v1/models", headers={"Host": "evil"}),
        await server.http("wrong").get("/v1/models"),
    ]
    assert [each.status_code for each in responses] == [200, 200, 404, 405, 421, 401]
    for each in responses:
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["referrer-policy"] == "no-referrer"
        assert each.headers["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in each.headers["permissions-policy"]
        assert each.headers["cache-control"] == "no-store"


async def test_unknown_paths_and_methods_are_errors_in_our_shape(server):
    client = server.http()
    for path in ("/page/", "/nothing", "/v1/responses/", "//v1/models", "/v1/../v1/models"):
        status, received = await raw(
            server,
            f"GET {path} HTTP/1.1\nHost: localhost:{port_of(server)}\nConnection: close\n\n",
        )
        assert status == 404
        assert b'"code":"not_found"' in received
    response = await client.put("/v1/responses")
    assert response.status_code == 405
    assert "POST" in response.headers["allow"]
    assert response.json()["error"]["code"] == "method_not_allowed"


async def test_a_json_body_needs_the_content_type_of_json(server):
    client = server.http()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
        headers = {"Content-Type": kind}
        response = await client.post("/v1/responses", content=b'{"input": "x"}', headers=headers)
        assert response.status_code == 415
        assert response.json()["error"]["code"] == "unsupported_media_type"
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    response = await client.post("/v1/responses", content=b'{"input": "x"}', headers=headers)
    assert response.status_code == 200
