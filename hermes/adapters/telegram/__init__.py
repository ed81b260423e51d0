"""The Telegram adapter: a bot by long polling.

Reading order: `adapter` (the adapter itself), `poller` (updates from Telegram), `inbound` (an
update becomes a message), `sender` (replies, previews, typing indicators), `markdown` (Markdown to
MarkdownV2), `api` (HTTP client), `bot_api_types` (types of the Bot API), `utf16` (slices in UTF-16
code units, as Telegram counts).
"""

from __future__ import annotations

from hermes.adapters.telegram.adapter import (
    Telegram as Telegram,
    default_rate_limiter as default_rate_limiter,
)
from hermes.adapters.telegram.api import BASE as BASE
from hermes.adapters.telegram.inbound import GroupPolicy as GroupPolicy
