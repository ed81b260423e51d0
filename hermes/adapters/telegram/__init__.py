"""Telegram, by long polling. Read: adapter, receiving, inbound, outgoing, api."""

from __future__ import annotations

from hermes.adapters.telegram.adapter import (
    Telegram as Telegram,
    default_governor as default_governor,
)
from hermes.adapters.telegram.api import BASE as BASE
from hermes.adapters.telegram.inbound import GroupPolicy as GroupPolicy
