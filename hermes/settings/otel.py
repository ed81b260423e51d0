"""The settings of OpenTelemetry."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from hermes.config import PositiveInt
from hermes.validation import Validated

Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class OtelConfig(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent to a collector of OpenTelemetry.

    Raises `ValueError` for values that are not allowed.
    """

    endpoint: Annotated[Text | None, Meta(examples=["http://127.0.0.1:4318/v1/traces"])] = None
    """URL of the collector (OTLP over HTTP). Default: OTEL_EXPORTER_OTLP_ENDPOINT, or this machine.
    Headers with credentials are in OTEL_EXPORTER_OTLP_HEADERS.
    """
    service_name: Text = "hermes"
    """The name of this bot."""
    content: bool = False
    """Whether spans contain messages, answers, and the arguments and results of tools."""
    ids: Literal["hash", "plain"] = "hash"
    """Whether the keys of conversations and the ids of users are sent as hashes or as they are."""
    names: Literal["1.41", "latest"] = "1.41"
    """The edition of OpenTelemetry's names for generative AI."""
    max_queue: PositiveInt = 2048
    """Spans that wait to be sent; further ones are dropped and counted."""
