"""Signatures of webhooks: published test vectors, and what must not be accepted."""

from __future__ import annotations

import base64

import attrs
import pytest
from hypothesis import given, strategies as st

from hermes.adapters.http.hooks.signatures import (
    SCHEMES,
    BadSignature,
    Scheme,
    key_of,
    scheme_of,
    sign,
    verify,
)
from hermes.adapters.http.hooks.templates import text_of
from hermes.settings import Reference
from hermes.settings.http import HookTable

WINDOW = 300.0
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
    b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
    b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
    b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
# From the documentation of Standard Webhooks' libraries, GitHub and Slack.
VECTORS = {
    "standard": (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        },
        b'{"test": 2432232314}',
    ),
    "github": (
        "It's a Secret to Everybody",
        {
            "x-hub-signature-256": "sha256="
            "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
            "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        },
        b"Hello, World!",
    ),
    "slack": (
        "8f742231b10e8888abcd99yyyzzz85a5",
        {
            "x-slack-request-timestamp": "1531420618",
            "x-slack-signature": "v0="
            "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        },
        SLACK_BODY,
    ),
}
TIMES = {"standard": 1614265330, "github": 0, "slack": 1531420618}


def table(scheme, **more):
    return HookTable(secret=Reference("env:X"), scheme=scheme, **more)


def check(scheme, secret, headers, body, *, now=0.0, window=WINDOW):
    """Verify with a known scheme, or one that is given."""
    known = SCHEMES[scheme] if isinstance(scheme, str) else scheme
    key = key_of(table(scheme if isinstance(scheme, str) else "github"), secret)
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return verify(known, key, raw, body, now=now, window=window)


@pytest.mark.parametrize("scheme", VECTORS)
def test_the_published_vector_is_valid(scheme):
    event_id = check(scheme, *VECTORS[scheme], now=TIMES[scheme])
    expected = {"standard": "msg_p5jXN8AQM9LWM0D4loKWxJek"}
    expected["github"] = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
    assert event_id == expected.get(scheme, event_id)
    assert scheme != "slack" or event_id.startswith("sha256:")


@pytest.mark.parametrize("scheme", VECTORS)
@given(data=st.data())
def test_any_other_byte_makes_it_invalid(scheme, data):
    secret, headers, body = VECTORS[scheme]
    signature = SCHEMES[scheme].signature_header
    signed = [name for name in headers if name == signature or "{id}" in SCHEMES[scheme].signed]
    what = data.draw(st.sampled_from(["body", "secret", *signed]))
    given_ = {"body": body, "secret": secret.encode(), **{k: headers[k].encode() for k in headers}}
    value = bytearray(given_[what])
    index = data.draw(st.integers(0, len(value) - 1))
    value[index] ^= data.draw(st.integers(1, 127))
    changed = {**given_, what: bytes(value)}
    texts = {name: changed[name].decode("latin-1") for name in headers}
    with pytest.raises((BadSignature, ValueError)):
        check(scheme, changed["secret"].decode("latin-1"), texts, changed["body"],
              now=TIMES[scheme])  # fmt: skip


@pytest.mark.parametrize("scheme", VECTORS)
def test_every_header_is_needed_once(scheme):
    secret, headers, body = VECTORS[scheme]
    for missing in headers:
        rest = {name: value for name, value in headers.items() if name != missing}
        with pytest.raises(BadSignature):
            check(scheme, secret, rest, body, now=TIMES[scheme])
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw.append((missing.encode(), headers[missing].encode()))
        key = key_of(table(scheme), secret)
        with pytest.raises(BadSignature):
            verify(SCHEMES[scheme], key, raw, body, now=TIMES[scheme], window=WINDOW)


@pytest.mark.parametrize(
    ("difference", "valid"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)]
)
def test_the_time_must_lie_in_the_window(difference, valid):
    arguments, now = VECTORS["standard"], TIMES["standard"] + difference
    if valid:
        check("standard", *arguments, now=now)
    else:
        with pytest.raises(BadSignature, match="too long ago"):
            check("standard", *arguments, now=now)


@pytest.mark.parametrize("timestamp", ["", "-5", "1e9", "１６", "1614265330.0", "9" * 13, " 5"])
def test_a_timestamp_is_a_number_of_seconds(timestamp):
    scheme, key = SCHEMES["slack"], b"key"
    signature = sign(scheme, key, f"v0:{timestamp}:".encode("utf-8", "replace") + b"x")
    raw = [
        (b"x-slack-request-timestamp", timestamp.encode()),
        (b"x-slack-signature", signature.encode()),
    ]
    with pytest.raises(BadSignature):
        verify(scheme, key, raw, b"x", now=0, window=1e18)


def test_one_of_several_signatures_suffices():
    secret, headers, body = VECTORS["standard"]
    right, wrong = headers["webhook-signature"], f"v1,{base64.b64encode(b'x' * 32).decode()}"
    now = TIMES["standard"]
    for several in (f"{wrong} {right}", f"{right} {wrong}", f"v1a,abc {wrong} {right}"):
        check("standard", secret, {**headers, "webhook-signature": several}, body, now=now)
    for none in (wrong, f"{wrong} {wrong}", right.replace("v1,", "v2,"), right[3:], f"{right},x"):
        with pytest.raises(BadSignature):
            check("standard", secret, {**headers, "webhook-signature": none}, body, now=now)


def test_without_an_id_equal_events_are_the_same_and_others_are_not():
    scheme = Scheme(signature_header="x-signature", timestamp_header="x-time",
                    signed="{timestamp}.{body}", encoding="base64")  # fmt: skip

    def event(timestamp, body):
        content = timestamp.encode() + b"." + body
        headers = {"X-Signature": sign(scheme, b"k", content), "X-Time": timestamp}
        return check(scheme, "k", headers, body, now=float(timestamp))

    assert event("5", b"a") == event("5", b"a")
    assert len({event("5", b"a"), event("6", b"a"), event("5", b"b")}) == 3


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=50), st.integers(0, 10**11))
def test_what_is_signed_with_the_key_is_valid_and_with_another_is_not(body, key, now):
    for name, scheme in SCHEMES.items():
        stamp = str(now)
        content = scheme.signed.format(id="e1", timestamp=stamp, body="\0")
        content = content.encode().replace(b"\0", body)
        headers = {scheme.signature_header: sign(scheme, key, content)}
        headers |= {scheme.timestamp_header: stamp} if scheme.timestamp_header else {}
        headers |= {scheme.id_header: "e1"} if scheme.id_header else {}
        raw = [(header.encode(), value.encode()) for header, value in headers.items()]
        assert verify(scheme, key, raw, body, now=now, window=0), name
        with pytest.raises(BadSignature):
            verify(scheme, key + b"x", raw, body, now=now, window=0)
        with pytest.raises(BadSignature):
            verify(scheme, key, raw, body + b"x", now=now, window=0)


def test_settings_describe_a_scheme_or_change_a_known_one():
    custom = table("custom", signature_header="X-Sig", prefix="h=", encoding="base64")
    expected = Scheme(signature_header="X-Sig", prefix="h=", encoding="base64")
    assert scheme_of(custom) == expected
    changed = attrs.evolve(SCHEMES["slack"], id_header="X-Id")
    assert scheme_of(table("slack", id_header="X-Id")) == changed
    assert scheme_of(table("github")) == SCHEMES["github"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"scheme": "custom"}, "signature_header"),
        ({"scheme": "custom", "signature_header": "X Y"}, "signature_header"),
        ({"scheme": "github", "signed": "{timestamp}"}, "body"),
        ({"scheme": "standard", "signed": "{id}.{body}"}, "timestamp"),
        ({"scheme": "github", "timestamp_header": "X-Time"}, "timestamp"),
        (
            {"scheme": "custom", "signature_header": "X", "timestamp_header": "X-Time"},
            "timestamp",
        ),
        ({"scheme": "other"}, "scheme"),
        ({"scheme": "github", "window": -1.0}, "window"),
        ({"scheme": "github", "max_body": 0}, "max_body"),
        ({"scheme": "github", "text": ""}, "text"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        table(**values)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!!", "", "not base64"])
def test_a_secret_of_standard_webhooks_is_base64(secret):
    with pytest.raises(ValueError, match="base64"):
        key_of(table("standard"), secret)


@pytest.mark.parametrize(
    ("template", "body", "text"),
    [
        ("{body}", b'{"a": 1}', '{"a": 1}'),
        ("New: {body}", b"plain", "New: plain"),
        ("{action}: {pr.title} ({pr.number})", b'{"action":"open","pr":{"title":"T","number":5}}',
         "open: T (5)"),
        ("{items.1.name}{items.7.name}{a.b.c}", b'{"items":[{}, {"name":"x"}], "a": 1}', "x"),
        ("{a}", b'{"a": {"b": ["\xc3\xa9"]}}', '{"b": ["é"]}'),
        ("{a} {b}", b'{"a": "{b}", "b": "{body}"}', "{b} {body}"),
        ("{ not a field } {}", b"{}", "{ not a field } {}"),
        ("{body}", b"\xff", "\ufffd"),
    ],
)  # fmt: skip
def test_the_text_of_an_event(template, body, text):
    assert text_of(template, body) == text


def test_a_field_needs_json():
    with pytest.raises(ValueError, match="not valid JSON"):
        text_of("{a}", b"a=b")


def test_a_body_that_is_nested_too_deeply_is_refused():
    body = b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"
    assert text_of("{body}", body) == body.decode()
    with pytest.raises(ValueError, match="nested too deeply"):
        text_of("{a}", body)
