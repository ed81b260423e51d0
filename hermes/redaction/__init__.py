"""Redaction: secrets are used, but never stored, published or logged.

Reading order: `stream` (the interfaces), `keys`, `search`, `encodings`, `values`, `urls`,
`events`.
"""

from __future__ import annotations

from hermes.redaction.events import (
    EventRedactor as EventRedactor,
    redact_all as redact_all,
    redact_message as redact_message,
    redact_messages as redact_messages,
    redact_optional as redact_optional,
    redact_result as redact_result,
)
from hermes.redaction.keys import Secret as Secret, redact_keys as redact_keys
from hermes.redaction.stream import (
    REDACTED as REDACTED,
    Redact as Redact,
    RedactingStream as RedactingStream,
    Redactor as Redactor,
    as_redactor as as_redactor,
)
from hermes.redaction.urls import url_credentials as url_credentials
from hermes.redaction.values import (
    StrictRedactor as StrictRedactor,
    ValueRedactor as ValueRedactor,
)
