"""The tables and keys of the configuration file.

Each setting is written once: here, or in `hermes.config` if a runtime has it too. The docstring of
a field is its comment in the example configuration. `Meta(examples=...)` is what the example shows
for a key without a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from hermes.config import (
    AttachmentLimits,
    Budgets,
    CompressionConfig,
    Config,
    PositiveInt,
    Price,
    RateLimit,
)
from hermes.messages import AttachmentKind, ExpiryPolicy
from hermes.settings.http import HttpConfig
from hermes.settings.otel import OtelConfig
from hermes.settings.references import Reference

AgentKind: TypeAlias = Literal["offline", "openai", "anthropic"]
LogForm: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class AgentTable(Table, frozen=True, kw_only=True):
    """The agent that answers."""

    kind: Annotated[AgentKind | None, Meta(examples=["offline"])] = None
    """Kind of agent: "offline" needs no model, "openai" works with any compatible endpoint,
    "anthropic" with Anthropic's API. Default: what the first of OPENAI_BASE_URL, OPENAI_API_KEY,
    ANTHROPIC_API_KEY and OPENROUTER_API_KEY that is set connects to, else "offline".
    """
    model: Annotated[Text | None, Meta(examples=["gpt-4.1-mini"])] = None
    """Name of the model."""
    base_url: Annotated[Text | None, Meta(examples=["https://api.openai.com/v1"])] = None
    """URL of the endpoint. Default: OPENAI_BASE_URL or ANTHROPIC_BASE_URL, else the provider's."""
    key: Annotated[Reference | None, Meta(examples=["env:OPENAI_API_KEY"])] = None
    """API key."""
    system: Annotated[
        str | None, Meta(examples=["You are a helpful assistant. Answer briefly."])
    ] = None
    """System prompt."""
    max_tokens: Annotated[PositiveInt | None, Meta(examples=[4000])] = None
    """Maximum length of an answer, in tokens. Default: the provider decides."""
    parameters: Annotated[dict[str, Any], Meta(examples=[{"temperature": 0.3}])] = {}
    """Additional parameters of each request."""
    headers: Annotated[dict[str, str], Meta(examples=[{"X-Team": "research"}])] = {}
    """Additional HTTP headers of each request."""
    alternate: bool = False
    """Merge consecutive messages of the same role, as some local models require."""
    attachments: Annotated[list[AttachmentKind] | None, Meta(examples=[["image", "file"]])] = None
    """What the model takes of attachments: "image", "file" (PDF), "audio", and "url" (images on the
    web, which the provider fetches). It gets a note in words instead of others. Default: "image",
    "file" and "url" for the APIs of OpenAI and Anthropic, "image" for other URLs.
    """
    tools: Annotated[list[str], Meta(examples=[["my_tools:add", "my_tools:send"]])] = []
    """Python functions that the model may call, as "module:function"."""
    prices: Annotated[
        dict[str, Price],
        Meta(
            examples=[
                {
                    "gpt-4.1-mini": {
                        "input": 0.4,
                        "output": 1.6,
                        "cache_read": 0.1,
                        "cache_write": 0.4,
                    },
                    "gpt-4.1-nano": {"input": 0.1, "output": 0.4},
                }
            ]
        ),
    ] = {}
    """Prices for a million tokens, by model. With them costs are recorded and budgets enforced."""
    budgets: Budgets = Budgets()
    """How much may be spent, in the currency of the prices. Default: no limit. Each model that is
    called needs a price then, also those for titles and compression.
    """


class NamedAgentTable(Table, frozen=True, kw_only=True):
    """Another agent. What is not set is as in `[agent]`.

    With another kind or base_url, the key, headers, parameters, alternate and attachments are not
    taken from there, so that a key is never sent to another endpoint.
    """

    kind: AgentKind | None = None
    """Kind of agent, "openai" or "anthropic"."""
    model: Text | None = None
    """Name of the model."""
    base_url: Text | None = None
    """URL of the endpoint."""
    key: Reference | None = None
    """API key."""
    system: str | None = None
    """System prompt."""
    max_tokens: PositiveInt | None = None
    """Maximum length of an answer, in tokens."""
    parameters: dict[str, Any] | None = None
    """Additional parameters of each request."""
    headers: dict[str, str] | None = None
    """Additional HTTP headers of each request."""
    alternate: bool | None = None
    """Merge consecutive messages of the same role."""
    attachments: list[AttachmentKind] | None = None
    """What the model takes of attachments."""
    tools: list[str] | None = None
    """Python functions that the model may call; the tools of MCP servers belong to all agents."""
    platforms: list[str] = []
    """Platforms on which it answers: "console", "rpc", "telegram", "http" or "web"."""
    chats: list[str] = []
    """Chats in which it answers, as platform/id, as in "telegram/-1001234567890"."""


class CompressionTable(CompressionConfig, frozen=True, kw_only=True):
    """Compression, and the model that writes the summaries."""

    model: Annotated[Text | None, Meta(examples=["gpt-4.1-nano"])] = None
    """Model that writes the summaries. Default: the model that answers."""


class TitlesTable(Table, frozen=True, kw_only=True):
    """Automatic titles."""

    enabled: bool = True
    """Whether conversations get a title after the first exchange."""
    model: Annotated[Text | None, Meta(examples=["gpt-4.1-nano"])] = None
    """Model that writes the titles. Default: the model that answers."""


class TranscriberTable(Table, frozen=True, kw_only=True):
    """A service that turns voice into text."""

    base_url: Annotated[Text, Meta(examples=["https://api.openai.com/v1"])]
    """URL of the endpoint, without /audio/transcriptions; any that is compatible with OpenAI's."""
    model: Annotated[Text, Meta(examples=["whisper-1"])]
    """Name of the model."""
    key: Annotated[Reference | None, Meta(examples=["env:OPENAI_API_KEY"])] = None
    """API key."""
    parameters: Annotated[dict[str, str], Meta(examples=[{"language": "en"}])] = {}
    """Additional fields of each request."""


class TelegramTable(Table, frozen=True, kw_only=True):
    """A Telegram bot."""

    token: Annotated[Reference, Meta(examples=["env:TELEGRAM_BOT_TOKEN"])]
    """Token of the bot, from @BotFather."""
    operators: Annotated[list[int], Meta(examples=[[11111111]])] = []
    """Users who may do everything, such as admitting others with /pair. Ids are numbers; the log
    (level "info") shows the ids of users who were rejected.
    """
    users: Annotated[list[int], Meta(examples=[[22222222]])] = []
    """Users who may talk to the bot."""
    chats: Annotated[list[int], Meta(examples=[[-1001234567890]])] = []
    """Groups whose members may talk to the bot as guests."""
    open: bool = False
    """Whether everybody may talk to the bot as a guest."""
    pairing: Annotated[bool | None, Meta(examples=[True])] = None
    """Whether an unknown user gets a code with which an operator can admit them. Default: true. If
    there are no users, operators and chats, it must be set explicitly.
    """
    groups: Literal["mention", "all"] = "mention"
    """In groups, answer only messages that address the bot ("mention"), or "all"."""
    shared_groups: bool = False
    """Whether the members of a group share one conversation."""
    edits: bool = False
    """Whether an edited message is answered again."""
    base_url: Annotated[Text | None, Meta(examples=["https://api.telegram.org"])] = None
    """URL of the Bot API server."""


class McpTable(Table, frozen=True, kw_only=True):
    """An MCP server, started by a command or reached at a URL."""

    command: list[str] = []
    """Command that starts the server, which then speaks over standard input and output."""
    url: Text | None = None
    """URL of a running server."""
    environment: dict[str, str] = {}
    """Environment variables of the command."""
    keys: dict[str, Reference] = {}
    """Environment variables of the command that are secret."""
    approval: bool = True
    """Whether the user must approve each call of a tool."""


class HooksTable(Table, frozen=True, kw_only=True):
    """Python functions that are called at session boundaries, as "module:function"."""

    on_session_finalize: Annotated[list[str], Meta(examples=[["my_hooks:remember"]])] = []
    """Called when a session ends, and for open sessions at shutdown."""
    on_session_reset: list[str] = []
    """Called when a conversation starts a new session."""
    on_session_switch: list[str] = []
    """Called when a conversation switches to an existing session."""


class LogTable(Table, frozen=True, kw_only=True):
    """The log."""

    form: LogForm = "text"
    """Format: "text" or "json", one object per line."""
    level: Annotated[LogLevel | None, Meta(examples=["info"])] = None
    """Lowest level to log. Default: "info", with a line for each turn; "warning" for a chat through
    a pipe and for `hermes -p`, whose log is on standard error.
    """


class MetricsTable(Table, frozen=True, kw_only=True):
    """Metrics for Prometheus."""

    file: Annotated[Text, Meta(examples=["/var/lib/node_exporter/hermes.prom"])]
    """File for the textfile collector of the node exporter, replaced every few seconds."""


class Settings(Table, frozen=True, kw_only=True):
    """The whole file."""

    data: Annotated[Text | None, Meta(examples=["~/.local/share/hermes/state.db"])] = None
    """Database with all conversations: a file, or the URL of a PostgreSQL database, as in
    "postgresql://bot@db.example.com/chats". env:NAME and file:PATH say where a URL is found.
    """
    socket: bool = True
    """Whether `hermes chat` and `hermes -p` can attach to the running bot, over a Unix socket
    beside the database that only the bot's own user can open.
    """
    agent: AgentTable = AgentTable()
    """The agent that answers."""
    agents: Annotated[
        dict[str, NamedAgentTable],
        Meta(
            examples=[
                {
                    "coder": {
                        "kind": "openai",
                        "model": "gpt-4.1-nano",
                        "base_url": "https://api.openai.com/v1",
                        "key": "env:OPENAI_API_KEY",
                        "system": "You write programs.",
                        "max_tokens": 8000,
                        "parameters": {"temperature": 0.0},
                        "headers": {"X-Team": "research"},
                        "alternate": False,
                        "attachments": ["image"],
                        "tools": ["my_tools:add"],
                        "platforms": ["rpc"],
                        "chats": ["telegram/-1001234567890"],
                    }
                }
            ]
        ),
    ] = {}
    """Other agents, by name. Each answers on its platforms and in its chats, and in conversations
    that choose it. What is not set is as in [agent]; but with another kind or base_url, the key,
    headers, parameters, alternate and attachments are not taken from there.
    """
    compression: CompressionTable = CompressionTable()
    """Compression of long conversations: the model summarizes the older messages."""
    titles: TitlesTable = TitlesTable()
    """Automatic titles of conversations."""
    runtime: Config = Config()
    """How turns run. Times are in seconds."""
    expiry: ExpiryPolicy = ExpiryPolicy()
    """When a conversation ends by itself, so that the next message starts a new session."""
    expiry_by: Annotated[
        dict[str, ExpiryPolicy],
        Meta(examples=[{"telegram": {"mode": "idle", "idle_minutes": 60.0}}]),
    ] = {}
    """The same for a platform, a chat type, or both, as in "telegram/group"."""
    texts: Annotated[
        dict[str, str],
        Meta(examples=[{"stopped": "Angehalten.", "resumed": "Wieder in {name}."}]),
    ] = {}
    """Sentences for users that replace those of Hermes, by name, for example in another language.

    The names and the placeholders in braces are those of `hermes.Texts`.
    """
    rates: RateLimit = RateLimit()
    """Rate limit for the messages of one user."""
    attachments: AttachmentLimits = AttachmentLimits()
    """Which files may be attached to messages, and how many. Sizes are in bytes."""
    transcriber: TranscriberTable | None = None
    """A service that turns voice messages into text before they are answered."""
    telegram: TelegramTable | None = None
    """A Telegram bot."""
    http: HttpConfig | None = None
    """A server for clients of OpenAI's APIs, and of the API of Hermes. `hermes tokens create` makes
    the tokens that clients need.
    """
    otel: OtelConfig | None = None
    """Sends traces of turns to a collector of OpenTelemetry."""
    mcp: Annotated[
        dict[str, McpTable],
        Meta(
            examples=[
                {
                    "files": {
                        "command": ["my-mcp-server", "--root", "/srv/files"],
                        "environment": {"LANG": "C.UTF-8"},
                        "keys": {"FILES_TOKEN": "env:FILES_TOKEN"},
                        "approval": True,
                    },
                    "search": {"url": "http://127.0.0.1:8931/mcp"},
                }
            ]
        ),
    ] = {}
    """MCP servers (Model Context Protocol) whose tools the model may call."""
    hooks: HooksTable = HooksTable()
    """Python functions that are called at session boundaries, as "module:function"."""
    log: LogTable = LogTable()
    """The log, on standard error. For a chat at a terminal it is a file next to the database, such
    as state.db.log.
    """
    metrics: MetricsTable | None = None
    """Metrics for Prometheus."""

    def config(self) -> Config:
        """Return the configuration of the runtime."""
        return msgspec.structs.replace(
            self.runtime,
            expiry=self.expiry,
            expiry_by=self.expiry_by,
            compression=self.compression,
            attachments=self.attachments,
        )


def keys_of(table: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the types of the keys of a table, by name.

    The parts of `Config` that have a table of their own in the file are no keys of `[runtime]`.
    """
    types = get_type_hints(table, include_extras=True)
    separate = set(Settings.__struct_fields__) if table is Config else set()
    return {name: types[name] for name in table.__struct_fields__ if name not in separate}


def table_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the table that a type is or may be: `Table`, `Table | None`, or one `Annotated`."""
    if get_origin(kind) is dict:
        return None
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None
