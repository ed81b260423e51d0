"""OpenTelemetry: the turns of a runtime as spans, which a thread of its own sends.

Reading order: `names`, `spans`, `exporting`, `tracing`. It needs the extra `otel`.
"""

from __future__ import annotations

from hermes.settings.otel import OtelConfig as OtelConfig
from hermes.telemetry.otel.tracing import Tracing as Tracing, open_tracing as open_tracing
