"""What an HTTP server listens to, and its limits: defined with the other settings."""

from __future__ import annotations

from hermes.settings.http import HttpConfig as HttpConfig, is_loopback as is_loopback
