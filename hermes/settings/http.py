"""The settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hermes.config import PositiveInt, RateLimit, Seconds
from hermes.session_keys import chat_of
from hermes.settings.references import Reference
from hermes.validation import Validated

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
DEFAULT_PORT = 8420
HeaderName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,100}$")]
_HOOK_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TIMED_SCHEMES = frozenset({"standard", "slack"})
"""Schemes whose signatures include a time."""
REQUESTS = RateLimit(per_minute=6000, burst=2000)


class HookTable(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook: events that another service posts to /hooks/NAME start turns.

    Raises `ValueError` for values that are not allowed.
    """

    secret: Reference
    """Secret with which the service signs its events."""
    scheme: Literal["standard", "github", "slack", "custom"] = "standard"
    """How it signs them: "standard" is Standard Webhooks. The keys from signature_header on
    describe a "custom" scheme, or change a known one.
    """
    conversation: Annotated[str | None, Meta(examples=["deployments"])] = None
    """Conversation in which the turns run: a name, or a session key such as
    "agent:main:telegram:dm:42". Default: one for the webhook.
    """
    deliver: Annotated[str | None, Meta(examples=["agent:main:telegram:dm:42"])] = None
    """Session key of a chat to which the replies are sent, such as "agent:main:telegram:dm:42" or
    "agent:main:console:dm:console". Default: they are in the conversation only.
    """
    text: Annotated[str, Meta(min_length=1, max_length=100_000)] = "{body}"
    """Text of the message: {body} is the whole body, {pull_request.title} a field of its JSON."""
    window: Seconds = 300.0
    """How many seconds the timestamp of an event may differ from the clock."""
    max_body: PositiveInt = 1_000_000
    """Bytes of an event's body."""
    signature_header: Annotated[HeaderName | None, Meta(examples=["X-Signature"])] = None
    """Header with the signature, or with several that spaces separate."""
    timestamp_header: Annotated[HeaderName | None, Meta(examples=["X-Timestamp"])] = None
    """Header with the time in seconds. Without one, events do not expire."""
    id_header: Annotated[HeaderName | None, Meta(examples=["X-Event-Id"])] = None
    """Header with the id of the event. Without one, equal events are the same event."""
    signed: Annotated[str | None, Meta(examples=["{timestamp}.{body}"])] = None
    """What is signed, with {id}, {timestamp} and {body}. Default: "{body}"."""
    prefix: Annotated[str | None, Meta(examples=["sha256="])] = None
    """What precedes a signature in its header."""
    encoding: Annotated[Literal["hex", "base64"] | None, Meta(examples=["hex"])] = None
    """How the HMAC-SHA256 is written. Default: "hex"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme == "custom" and self.signature_header is None:
            raise ValueError('scheme = "custom" needs a signature_header')
        if self.deliver is not None:
            chat_of(self.deliver)
        if self.signed is not None and "{body}" not in self.signed:
            raise ValueError("signed must contain {body}")
        timed = self.scheme in TIMED_SCHEMES
        if (timed or self.timestamp_header is not None) and not (
            "{timestamp}" in self.signed if self.signed is not None else timed
        ):
            raise ValueError("signed must contain {timestamp}, or anybody could change it")


class HttpConfig(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the HTTP server listens, and its limits. Times are in seconds.

    Raises `ValueError` for values that are not allowed.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address at which the server listens."""
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    """Port; 0 chooses a free one."""
    public: bool = False
    """Whether the address may be one that other machines can reach."""
    hosts: Annotated[tuple[str, ...], Meta(examples=[["chat.example.com"]])] = ()
    """More names by which clients may call the server, such as that of a reverse proxy."""
    origins: Annotated[tuple[str, ...], Meta(examples=[["https://chat.example.com"]])] = ()
    """Origins of web pages that may call /v1. Default: none."""
    image_urls: bool = False
    """Whether addresses of images are passed on to an agent of which no catalog says what its model
    takes. Hermes itself never fetches them.
    """
    conversation_headers: tuple[str, ...] = ("x-hermes-conversation",)
    """Headers by which a chat completion can name its conversation, the first one first."""
    conversation_by_user: bool = False
    """Whether the `user` of a chat completion names its conversation if nothing else does."""
    max_body: PositiveInt = 20_000_000
    """Bytes of a request's body. Uploads of files have the limit of attachments."""
    max_header: Annotated[int, Meta(ge=1024)] = 16_384
    """Bytes of a request line and its headers."""
    max_connections: PositiveInt = 1000
    """Connections at the same time."""
    max_streams: PositiveInt = 100
    """Requests that one token may have at the same time."""
    max_replay: PositiveInt = 16_000_000
    """Bytes of the events of a running response that are kept for clients that resume."""
    rates: RateLimit = REQUESTS
    """Requests that one token may send. Messages also have the rate limit of their sender."""
    header_timeout: Seconds = 10.0
    """Seconds in which the headers of a request must arrive."""
    body_timeout: Seconds = 60.0
    """Seconds in which the next piece of a body must arrive; beyond that, 1 kB per second."""
    send_timeout: Seconds = 30.0
    """Seconds after which a client that reads nothing is disconnected."""
    keep_alive: Seconds = 60.0
    """Seconds after which an idle connection is closed."""
    close_timeout: Seconds = 5.0
    """Seconds in which clients must receive the rest of their answers when the server ends."""

    hooks: Annotated[
        dict[str, HookTable],
        Meta(
            examples=[
                {
                    "github": {
                        "secret": "env:GITHUB_WEBHOOK_SECRET",
                        "scheme": "github",
                        "conversation": "pull requests",
                        "text": "{action}: {pull_request.title}",
                    }
                }
            ]
        ),
    ] = msgspec.field(default_factory=dict)
    """Webhooks: another service posts events to /hooks/NAME."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.hooks:
            if not _HOOK_NAME.fullmatch(name):
                raise ValueError(
                    f"the name of a webhook has 1 to 64 letters, digits, _ and -, not {name!r:.80}"
                )
        if not self.public and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from other machines; if that is intended, set "
                "public = true in [http]"
            )


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
