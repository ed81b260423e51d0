"""A runtime with an HTTP server on loopback, and clients for it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import httpx2
import openai
import trio

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.adapters.http.web.people import OPERATOR
from hermes.messages import Token


async def echo(turn):
    """Answer with the text of the message."""
    return f"echo: {turn.text}"


async def new_token(runtime, name="ann", *, roles=("user",), namespace=None, keys=()):
    """Store a token, and return its secret."""
    secret = new_secret()
    token = Token(
        id=new_id("tok"), name=name, namespace=namespace or name, roles=roles, keys=keys,
        created_at=0.0,
    )  # fmt: skip
    await runtime.api.add_token(token, digest_of(secret))
    return secret


async def sign_in(server, client, person=OPERATOR):
    """Sign in with a one-time token, and return who is signed in."""
    token = new_secret("hml_")
    await server.runtime.api.add_sign_in(digest_of(token), person)
    answer = await client.post("/api/sign-in", json={"token": token})
    assert answer.status_code == 200, answer.text
    return answer.json()


@attrs.frozen
class Server:
    """A running server, with the token of a user."""

    runtime: object
    url: str
    secret: str
    _clients: list = attrs.Factory(list)

    def openai(self, secret=None, **options):
        """The stock SDK; without retries unless they are asked for."""
        options = {"max_retries": 0, **options}
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=secret or self.secret, **options
        )
        self._clients.append(client.close)
        return client

    def http(self, secret=None, **options):
        """An HTTP client that sends the token."""
        headers = {"Authorization": f"Bearer {secret or self.secret}"}
        client = httpx2.AsyncClient(base_url=self.url, headers=headers, **options)
        self._clients.append(client.aclose)
        return client

    def browser(self, **options):
        """A client that keeps cookies and says what the page's requests say, without a token."""
        headers = {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}
        client = httpx2.AsyncClient(base_url=self.url, headers=headers, **options)
        self._clients.append(client.aclose)
        return client

    async def close_clients(self):
        """Close the connections of all clients."""
        for close in self._clients:
            await close()


@asynccontextmanager
async def http_server(
    path, agent=echo, *, config=None, runtime_config=None, secret=None, **options
):
    """Open a runtime and serve it during the block; `secret` is that of a token it has already."""
    options["config"] = runtime_config
    async with open_runtime(path, agent=agent, **options) as runtime:
        secret = secret or await new_token(runtime)
        async with serve_http(runtime, config or HttpConfig(port=0)) as url:
            server = Server(runtime, url, secret)
            try:
                yield server
            finally:
                with trio.CancelScope(shield=True):
                    await server.close_clients()
