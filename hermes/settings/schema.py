"""The settings, one class per table of the file; every default stands here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import msgspec

from hermes.config import CompressionConfig
from hermes.messages import Busy, ExpiryPolicy

Kind = Literal["offline", "openai", "anthropic"]
Platform = Literal["console", "rpc", "telegram"]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Money = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Words = Annotated[str, msgspec.Meta(min_length=1)]

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Reference(str):
    """Where a key is to be found: `env:NAME` or `file:PATH`. Never the key itself."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not _REFERENCE.fullmatch(text):
            # Not with the text: it may be the key.
            raise ValueError(
                "keys are not written into this file; say env:NAME or file:PATH, where it is found"
            )
        return super().__new__(cls, text)


class PriceTable(Table, frozen=True, kw_only=True):
    """What a million tokens of a model cost."""

    input: Money = 0.0
    output: Money = 0.0
    cache_read: Money | None = None
    cache_write: Money | None = None


class BudgetTable(Table, frozen=True, kw_only=True):
    """How much may be spent, in the currency of the prices."""

    session: Money | None = None
    principal: Money | None = None
    day: Money | None = None


class AgentTable(Table, frozen=True, kw_only=True):
    """What answers."""

    kind: Kind | None = None
    model: Words | None = None
    base_url: Words | None = None
    key: Reference | None = None
    system: str | None = None
    max_tokens: Count | None = None
    parameters: dict[str, Any] = {}
    headers: dict[str, str] = {}
    alternate: bool = False
    tools: list[str] = []
    prices: dict[str, PriceTable] = {}
    budgets: BudgetTable = BudgetTable()


class CompressionTable(Table, frozen=True, kw_only=True):
    """When a conversation is summed up, and by which model."""

    enabled: bool = True
    model: Words | None = None
    window: Count = CompressionConfig().window
    max_output: Annotated[int, msgspec.Meta(ge=0)] = CompressionConfig().max_output
    share: Share = CompressionConfig().share
    tail_share: Share = CompressionConfig().tail_share
    protect_first: Annotated[int, msgspec.Meta(ge=0)] = CompressionConfig().protect_first


class TitlesTable(Table, frozen=True, kw_only=True):
    """Titles that conversations get by themselves."""

    enabled: bool = True
    model: Words | None = None


class RuntimeTable(Table, frozen=True, kw_only=True):
    """How turns are run."""

    busy: Busy = "queue"
    busy_on: dict[Platform, Busy] = {}
    max_queued: Count = 100
    turn_timeout: Seconds = 1800.0
    drain_timeout: Seconds = 30.0
    idle_timeout: Seconds = 900.0
    max_agents: Count = 128


class ExpiryTable(Table, frozen=True, kw_only=True):
    """When a conversation is over by itself."""

    mode: Literal["none", "idle", "daily", "both"] = "none"
    idle_minutes: Seconds = ExpiryPolicy().idle_minutes
    at_hour: Annotated[int, msgspec.Meta(ge=0, le=23)] = ExpiryPolicy().at_hour

    def policy(self) -> ExpiryPolicy:
        return ExpiryPolicy(mode=self.mode, idle_minutes=self.idle_minutes, at_hour=self.at_hour)


class RatesTable(Table, frozen=True, kw_only=True):
    """How much one person may say."""

    per_minute: Seconds = 30.0
    burst: Count = 30


class TelegramTable(Table, frozen=True, kw_only=True):
    """A bot on Telegram, and who may speak with it."""

    token: Reference
    operators: list[int] = []
    users: list[int] = []
    chats: list[int] = []
    open: bool = False
    pairing: bool | None = None
    groups: Literal["mention", "all"] = "mention"
    shared_groups: bool = False
    edits: bool = False
    base_url: Words | None = None


class McpTable(Table, frozen=True, kw_only=True):
    """A server with tools: a command that speaks over stdio, or the address of one."""

    command: list[str] = []
    url: Words | None = None
    environment: dict[str, str] = {}
    keys: dict[str, Reference] = {}
    """Of its environment as well, and never shown."""
    approval: bool = True


class LogTable(Table, frozen=True, kw_only=True):
    """What is written to standard error."""

    form: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] | None = None
    """Without it: info, which has a line for each turn, and at the console only warnings."""


class MetricsTable(Table, frozen=True, kw_only=True):
    """A file in Prometheus' text format, for its node exporter."""

    file: Words


class Settings(Table, frozen=True, kw_only=True):
    """All of the file."""

    data: Words | None = None
    agent: AgentTable = AgentTable()
    compression: CompressionTable = CompressionTable()
    titles: TitlesTable = TitlesTable()
    runtime: RuntimeTable = RuntimeTable()
    expiry: ExpiryTable = ExpiryTable()
    expiry_by: dict[str, ExpiryTable] = {}
    rates: RatesTable = RatesTable()
    telegram: TelegramTable | None = None
    mcp: dict[str, McpTable] = {}
    hooks: dict[
        Literal["on_session_finalize", "on_session_reset", "on_session_switch"], list[str]
    ] = {}
    log: LogTable = LogTable()
    metrics: MetricsTable | None = None
