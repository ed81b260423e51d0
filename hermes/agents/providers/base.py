"""The interface between agents and model providers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence, Set as AbstractSet
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import msgspec

from hermes.errors import HermesError
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import AttachmentKind, Message, Usage
from hermes.protocols import FileReader
from hermes.redaction import Secret as Secret, StrictRedactor, url_credentials
from hermes.redaction.urls import hide_credentials, named_credentials
from hermes.texts import Texts

log: logging.Logger = logging.getLogger(__name__)

UNNAMED = "model"
MAX_TOKENS = 10**12
"""More tokens than any call can have."""

OpenFile: TypeAlias = Callable[[str], Awaitable[FileReader]]
"""Returns a reader of a file by its id. Raises `UnknownFile`."""
SLOT: Final = b"\0"
"""Delimits the fields of a slot. Encoded JSON never contains it, since strings escape it."""
SLOT_FIELDS: Final = 4
"""A slot has a `SlotHeader`, JSON before and after the content, and JSON if there is no file."""
SlotHeader: TypeAlias = tuple[str, Literal["base64", "text", "url"], int]
"""The id of a file, how its content is encoded, and about how many tokens it has.

An image on the web has its URL as the id, and no content.
"""
decode_header: Final = msgspec.json.Decoder(SlotHeader).decode


class ProviderError(HermesError):
    """The provider did not answer. The message says why, in one sentence for the user."""

    def text(self, texts: Texts) -> str:
        """Return why, for the user: the message, unless the table has a sentence for it."""
        return str(self)

    @property
    def kind(self) -> str:
        """The `error_kind` of a turn that fails with this error."""
        return type(self).__name__


class AuthenticationFailed(ProviderError):
    """The API key is missing, wrong, or not valid for this model."""


class OutOfQuota(ProviderError):
    """The account has no credit or quota left; a retry does not help."""


class RequestRejected(ProviderError):
    """The provider rejected the request; the same request would be rejected again.

    `unexplained` is true if the provider gave no reason. Some do that if a prompt is too long.
    """

    def __init__(self, text: str, *, unexplained: bool = False) -> None:
        super().__init__(text)
        self.unexplained = unexplained


class Unavailable(ProviderError):
    """A temporary failure: overload, a server error, a lost connection, a truncated stream.

    `retry_after` is the delay in seconds that the provider asked for, if it did. `rate_limited`
    means that too many requests were sent.
    """

    def __init__(
        self, text: str, retry_after: float | None = None, *, rate_limited: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.rate_limited = rate_limited

    @property
    def kind(self) -> str:
        """The `error_kind` of a turn: "RateLimited" if too many requests were sent."""
        return "RateLimited" if self.rate_limited else super().kind


@attrs.frozen(kw_only=True)
class Endpoint:
    """The URL of a model, with its credentials and limits."""

    base_url: str = attrs.field(repr=hide_credentials)
    """For OpenAI's protocol up to and including `/v1`, for Anthropic's without it."""
    model: str
    """The model name that is sent in each request."""
    key: Secret = attrs.Factory(Secret)
    """The API key; by default none is sent."""
    name: str = UNNAMED
    """The name of the provider, in error messages and in `Usage.provider`."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Additional HTTP headers. Their values are treated as secrets."""
    max_tokens: int | None = None
    """Maximum length of an answer. None is the provider's default (Anthropic: 8192)."""
    parameters: tuple[tuple[str, object], ...] = ()
    """Additional fields of each request, such as `("temperature", 0.2)`."""
    alternate_roles: bool = False
    """Whether user and assistant messages must alternate, as some chat templates require."""
    attachments: tuple[AttachmentKind, ...] | None = None
    """What the model takes: images, files (PDF), audio, and images on the web, which the provider
    fetches. It gets a note in words instead of others. None: images, files and images on the web
    for the APIs of OpenAI and Anthropic, only images for other endpoints.
    """
    connect_timeout: float = 10.0
    """Maximum time in seconds to establish a connection."""
    read_timeout: float = 120.0
    """Maximum time in seconds between two chunks of an answer."""
    call_timeout: float = 600.0
    """Maximum time in seconds for one call, including the wait for a free connection."""

    @property
    def title(self) -> str:
        """The name in sentences."""
        return "the model" if self.name == UNNAMED else self.name

    @property
    def secrets(self) -> list[str]:
        """The API key, and the credentials inside of the URL and the headers."""
        named = [*named_credentials(self.headers), *url_credentials(self.base_url)]
        return [value for value in (self.key.reveal(), *named) if value]

    def redact(self, text: str) -> str:
        """Return the text without the credentials, and without strings that look like keys.

        Credentials are the API key, the values of headers, and those inside of the URL.
        """
        return StrictRedactor([*self.secrets, *(value for _, value in self.headers)])(text)


@attrs.define
class SentDigest:
    """The SHA-256 of a body that is put together while it is sent."""

    value: str | None = None
    """None until it was sent to its end."""


@attrs.frozen
class FileBody:
    """A request body with slots for files, which are read in pieces while it is sent."""

    encoded: bytes = attrs.field(repr=False)
    open_file: OpenFile
    max_bytes: int | None = None
    """How many bytes of files the provider takes in one request, as they are encoded."""
    hidden: AbstractSet[str] = frozenset()
    """The ids of files that are replaced by notes."""
    digest: SentDigest = attrs.field(factory=SentDigest, eq=False, repr=False)
    """The hash of what was sent last."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """JSON, then the fields of a slot, then JSON, and so on."""
        return self.encoded.split(SLOT)

    @property
    def tokens(self) -> int:
        """About how many tokens the files have."""
        return sum(tokens for _, _, tokens in self._headers)

    @property
    def shown(self) -> frozenset[str]:
        """The ids of the files that are not hidden."""
        return frozenset(file_id for file_id, _, _ in self._headers) - self.hidden

    @property
    def _headers(self) -> Sequence[SlotHeader]:
        return [decode_header(header) for header in self.pieces[1 :: SLOT_FIELDS + 1]]


def with_files(
    encoded: bytes, open_file: OpenFile, hidden: AbstractSet[str] = frozenset()
) -> bytes | FileBody:
    """Return an encoded body as it can be sent: unchanged if it has no files."""
    return FileBody(encoded, open_file, hidden=hidden) if SLOT in encoded else encoded


Delta: TypeAlias = TextDelta | ReasoningDelta


@attrs.frozen
class Completion:
    """The complete answer to one call."""

    message: Message
    usage: Usage | None = None
    """Token counts as reported by the provider."""
    truncated: bool = False
    """Whether the answer ended because it reached the token limit."""
    damaged: bool = False
    """Whether a part of the text is missing, because it could not be decoded."""


def token_count(reported: int | None, endpoint: Endpoint) -> int:
    """Return a number of tokens that a provider reports; 0 if it is missing or cannot be right."""
    count = reported or 0
    if 0 <= count <= MAX_TOKENS:
        return count
    _warn_of_counts(endpoint.title, endpoint.model)
    return 0


@functools.lru_cache(maxsize=100)  # log it once
def _warn_of_counts(name: str, model: str) -> None:
    log.warning("%s reports impossible numbers of tokens for %s, which are ignored", name, model)


class Provider(Protocol):
    """A model API. Implementations keep no state between calls."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is, with its credentials and limits."""
        ...

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON. The same messages always yield the same bytes."""
        ...

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body.

        `history` is the encoded history, joined with commas; `new` are the encoded messages of the
        current turn; `suffix` follows them and is left out of the provider's prompt cache.
        """
        ...

    async def complete(
        self, body: bytes | FileBody, on_delta: Callable[[Delta], None]
    ) -> Completion:
        """Send a request, call `on_delta` for each part of the answer, return the whole answer.

        A body with files is a `FileBody`: they are read in pieces while they are sent.

        Raises `ProviderError`, or `ContextOverflow` if the prompt is too long for the model.
        """
        ...
