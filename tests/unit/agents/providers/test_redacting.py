"""Answers without the credentials of the endpoint: deltas in their order, long ones in slices."""

from __future__ import annotations

import attrs
import pytest
import trio

from hermes.agents import Endpoint, Secret
from hermes.agents.providers.base import Completion, Unavailable
from hermes.agents.providers.redacting import EndpointRedactor, RedactingProvider
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import Message
from hermes.redaction import REDACTED, ValueRedactor
from hermes.redaction.slices import SLICE
from tests.support.secrets import TOKEN

LONG = "long answer. " * SLICE


@attrs.frozen
class FixedProvider:
    """Answers with these deltas, and fails after them if there is an error."""

    endpoint: Endpoint
    deltas: list
    error: Exception | None = None

    async def complete(self, body, on_delta):
        await trio.lowlevel.checkpoint()
        for delta in self.deltas:
            on_delta(delta)
        if self.error is not None:
            raise self.error
        texts = [delta.text for delta in self.deltas if isinstance(delta, TextDelta)]
        return Completion(Message("assistant", "".join(texts)))


def endpoint(key=TOKEN, **options):
    return Endpoint(base_url="http://x", model="m", key=Secret(key), **options)


def redacting(deltas, error=None, redact=None):
    provider = FixedProvider(endpoint(), deltas, error)
    return RedactingProvider(provider, EndpointRedactor(provider.endpoint, redact))


def joined(deltas, kind=TextDelta):
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


@pytest.mark.parametrize("redact", [None, ValueRedactor([TOKEN]), ValueRedactor(["other-secret"])])
async def test_a_long_delta_is_passed_on_in_slices_and_in_order(redact):
    seen = []
    deltas = [
        TextDelta("1 "),
        ReasoningDelta("2 "),
        TextDelta(LONG),
        TextDelta("3 "),
        TextDelta("!"),
    ]
    completion = await redacting(deltas, redact=redact).complete(b"", seen.append)
    assert joined(seen) == completion.message.content == f"1 {LONG}3 !"
    assert joined(seen, ReasoningDelta) == "2 "
    assert max(len(delta.text) for delta in seen) <= SLICE + 2 * len(TOKEN)
    assert len(seen) > len(LONG) // SLICE


async def test_a_key_in_two_deltas_is_redacted():
    seen, halves = [], [TextDelta(f"it is {TOKEN[:9]}"), TextDelta(f"{TOKEN[9:]} ok!")]
    completion = await redacting(halves).complete(b"", seen.append)
    assert joined(seen) == completion.message.content == f"it is {REDACTED} ok!"


async def test_what_is_withheld_is_passed_on_if_the_call_fails():
    seen, lost = [], Unavailable("lost")
    with pytest.raises(Unavailable):
        await redacting([TextDelta("a t")], lost).complete(b"", seen.append)
    assert joined(seen) == "a t"


def test_a_key_is_read_each_time(monkeypatch):
    redact = EndpointRedactor(attrs.evolve(endpoint(), key=Secret.env("HERMES_TEST_KEY")))
    assert redact(f"= {TOKEN}") == f"= {TOKEN}"
    monkeypatch.setenv("HERMES_TEST_KEY", TOKEN)
    assert redact(f"= {TOKEN}") == f"= {REDACTED}"
    monkeypatch.setenv("HERMES_TEST_KEY", "another-key")
    assert redact(f"another-key = {TOKEN}") == f"{REDACTED} = {TOKEN}"


def test_the_credentials_in_headers_are_secrets_and_other_headers_are_not():
    headers = (("authorization", "Bearer of-the-header"), ("x-team", "research"))
    redact = EndpointRedactor(endpoint(headers=headers))
    assert redact("the of-the-header of research") == f"the {REDACTED} of research"
    assert redact("Bearer of-the-header") == REDACTED
