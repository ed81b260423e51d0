"""HTTP: the OpenAI APIs under `/v1`, and the API of Hermes under `/api`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import lazy_names

if TYPE_CHECKING:
    from hermes.adapters.http.app import open_app as open_app
    from hermes.adapters.http.config import HttpConfig as HttpConfig
    from hermes.adapters.http.server import serve_http as serve_http

# `hermes tokens` needs neither hypercorn nor starlette.
_NAMES = {"app": "open_app", "config": "HttpConfig", "server": "serve_http"}
if not TYPE_CHECKING:
    __all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
