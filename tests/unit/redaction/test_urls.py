"""Credentials inside of URLs are secrets."""

from __future__ import annotations

import pytest

from hermes.agents import Endpoint
from hermes.redaction import REDACTED, url_credentials
from hermes.run.references import secret_values
from hermes.settings import load


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://api.openai.com/v1", []),
        ("http://127.0.0.1:8931/mcp", []),
        ("~/.local/share/hermes/state-2024.db", []),
        ("https://bot:p%40ss-word@proxy.example/v1", ["p%40ss-word", "p@ss-word"]),
        ("https://only-a-token@proxy.example", ["only-a-token"]),
        ("https://x.example/v1?api_key=a+b%2Bc&lang=en", ["a+b%2Bc", "a+b+c", "a b+c"]),
        ("https://mcp.example/s/NTQ3abcDEF0123456789xyz/mcp", ["NTQ3abcDEF0123456789xyz"]),
        (
            "https://x.example/?pwd=abc123def&pass=ghi456&jwt=eyJ.d.g",
            ["abc123def", "ghi456", "eyJ.d.g"],
        ),
        ("https://x.example/?code=abcdefgh12345678&k=abcdef123", ["abcdefgh12345678", "abcdef123"]),
        ("https://x.example/?code=DE&access=everybody&bypass=always&keep=1", []),
        ("https://x.example/v1#lang=en&token=abcdef", ["abcdef"]),
        ("https://x.example/v1#/login?token=abcdef", ["abcdef"]),
        ("https://x.example/v1;lang=en;token=abcdef/x", ["abcdef"]),
        ("https://SECRETKEY:x-oauth-basic@x.example", ["SECRETKEY"]),
        ("https://SECRETKEY:@x.example", ["SECRETKEY"]),
        ("https://0123456789abcdef0123:hidden@x.example", ["0123456789abcdef0123", "hidden"]),
        ("postgres://postgres:hidden@x.example/db?sslpassword=more", ["hidden", "more"]),
        ("https://[broken", []),
    ],
)
def test_the_credentials_of_a_url_are_found(url, secrets):
    assert sorted(url_credentials(url)) == sorted(secrets)


def test_the_credentials_of_all_urls_of_the_settings_are_secrets(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:from-environment@x.example/v1")
    agent = '[agent]\nkind = "openai"\nmodel = "m"\n'
    assert secret_values(load(agent)) == ["from-environment"]
    text = """
        data = "postgresql://me:of-the-database@x.example/chats"
        [agent]
        kind = "openai"
        model = "m"
        base_url = "https://me:of-the-model@x.example/v1"
        headers = { authorization = "Basic of-the-header", x-team = "research" }
        [mcp.search]
        url = "https://x.example/mcp?token=of-the-server"
        [mcp.files]
        command = ["files", "https://me:of-the-command@x.example"]
    """
    wanted = {"of-the-database", "of-the-model", "of-the-server", "of-the-command"}
    headers = {"of-the-header", "Basic of-the-header"}
    assert set(secret_values(load(text))) == wanted | headers


def test_an_endpoint_hides_the_credentials_of_its_url():
    endpoint = Endpoint(base_url="https://me:very-hidden@x.example/v1", model="m")
    assert "very-hidden" not in repr(endpoint)
    assert "x.example/v1" in repr(endpoint)
    assert endpoint.redact("to me:very-hidden@x") == f"to me:{REDACTED}@x"
