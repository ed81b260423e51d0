"""Signatures of webhooks: HMAC-SHA256, in the schemes of several services."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

import attrs
from msgspec.structs import asdict

from hermes.settings.http import HookTable

STANDARD_PREFIX = "whsec_"
MAX_ID = 200
MAX_SIGNATURES = 20
_PLACEHOLDER = re.compile(r"\{(id|timestamp|body)\}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID}}}")


class BadSignature(Exception):
    """The event is not signed with the secret, or not now. The message is a sentence."""


@attrs.frozen(kw_only=True)
class Scheme:
    """How a service signs its events."""

    signature_header: str
    timestamp_header: str | None = None
    """The header with the time of the signature, in seconds; None if there is none."""
    id_header: str | None = None
    """The header with the id of the event. Without one, equal events are the same event."""
    signed: str = "{body}"
    """What is signed, with {id}, {timestamp} and {body}."""
    prefix: str = ""
    """What precedes each signature in its header; others are ignored."""
    encoding: str = "hex"


_FIELDS = tuple(field.name for field in attrs.fields(Scheme))
SCHEMES: Mapping[str, Scheme] = {
    "standard": Scheme(
        signature_header="webhook-signature",
        timestamp_header="webhook-timestamp",
        id_header="webhook-id",
        signed="{id}.{timestamp}.{body}",
        prefix="v1,",
        encoding="base64",
    ),
    "github": Scheme(
        signature_header="x-hub-signature-256", id_header="x-github-delivery", prefix="sha256="
    ),
    "slack": Scheme(
        signature_header="x-slack-signature",
        timestamp_header="x-slack-request-timestamp",
        signed="v0:{timestamp}:{body}",
        prefix="v0=",
    ),
}


def scheme_of(table: HookTable) -> Scheme:
    """Return the scheme of a webhook: a known one, or what its settings say."""
    known = SCHEMES.get(table.scheme)
    values = asdict(table)
    given = {name: values[name] for name in _FIELDS if values[name] is not None}
    return Scheme(**given) if known is None else attrs.evolve(known, **given)


def key_of(table: HookTable, secret: str) -> bytes:
    """Return the key of the signatures. Raises `ValueError` if the secret is not valid.

    Secrets of Standard Webhooks are base64, and usually begin with `whsec_`.
    """
    if table.scheme != "standard":
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("the secret of a Standard Webhook must be base64, as in whsec_…")
    return key


def verify(
    scheme: Scheme,
    key: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    *,
    now: float,
    window: float,
) -> str:
    """Return the id of an event, if it is signed with the key and recent.

    Without an id in a header, it is derived from what is signed. Raises `BadSignature`. `headers`
    have lowercase names, as in ASGI; `window` is how many seconds the time may differ from `now`.
    """
    event_id = _header(headers, scheme.id_header)
    timestamp = _header(headers, scheme.timestamp_header)
    signatures = _header(headers, scheme.signature_header)
    if signatures is None:
        raise BadSignature("The event has no signature.")
    content = _content(scheme, event_id or "", timestamp or "", body)
    if not _is_signed(scheme, key, content, signatures):
        raise BadSignature("The signature of the event is not valid.")
    if scheme.timestamp_header is not None:
        if timestamp is None or not _TIMESTAMP.fullmatch(timestamp):
            raise BadSignature("The event has no valid timestamp.")
        if abs(now - int(timestamp)) > window:
            raise BadSignature("The event was signed too long ago, or the clocks differ.")
    if scheme.id_header is None:
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    if event_id is None or not _ID.fullmatch(event_id):
        raise BadSignature("The event has no valid id.")
    return event_id


def _content(scheme: Scheme, event_id: str, timestamp: str, body: bytes) -> bytes:
    """Return what is signed."""
    values = {
        "id": event_id.encode("latin-1"),
        "timestamp": timestamp.encode("latin-1"),
        "body": body,
    }
    texts = _PLACEHOLDER.split(scheme.signed)  # texts and the names of placeholders in turn
    return b"".join(
        values[text] if index % 2 else text.encode() for index, text in enumerate(texts)
    )


def sign(scheme: Scheme, key: bytes, content: bytes) -> str:
    """Return the signature of a content, with its prefix."""
    digest = hmac.new(key, content, hashlib.sha256).digest()
    encoded = base64.b64encode(digest).decode() if scheme.encoding == "base64" else digest.hex()
    return scheme.prefix + encoded


def _is_signed(scheme: Scheme, key: bytes, content: bytes, signatures: str) -> bool:
    """Whether one of the signatures, separated by spaces, is valid; all are compared."""
    expected = sign(scheme, key, content).encode()
    given = signatures.split(" ")[:MAX_SIGNATURES]
    valid = [hmac.compare_digest(expected, each.encode("latin-1")) for each in given]
    return any(valid)


def _header(headers: Sequence[tuple[bytes, bytes]], name: str | None) -> str | None:
    """Return the value of a header that occurs once."""
    if name is None:
        return None
    wanted = name.lower().encode()
    found = [value for key, value in headers if key == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else None
