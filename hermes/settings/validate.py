"""Rules that involve several settings: keys without effect, and keys that need others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from hermes.config import Budgets, Price
from hermes.messages import ExpiryPolicy
from hermes.settings.agents import DEFAULT_AGENT, agent_tables, places
from hermes.settings.schema import AgentTable, Settings
from hermes.settings.toml_lines import KeyPath
from hermes.texts import Texts
from hermes.texts.checks import problems
from hermes.validation import did_you_mean

BrokenRule: TypeAlias = tuple[KeyPath, str, *tuple[KeyPath, ...]]
"""A key, what to do about it, and other keys without which the rule might not be broken."""

_KIND: KeyPath = ("agent", "kind")
_PRICES: KeyPath = ("agent", "prices")
_TELEGRAM: KeyPath = ("telegram",)
_MODEL_KINDS = ("openai", "anthropic")
_MODEL_KEYS = (
    "model", "base_url", "key", "system", "max_tokens", "parameters", "headers", "alternate",
    "attachments", "tools", "prices", "budgets",
)  # fmt: skip
_MODEL_TABLES = ("compression", "titles", "mcp", "agents")
_PLATFORMS = ("console", "rpc", "telegram", "http", "web")
_CHAT_TYPES = ("dm", "group", "channel")


def validate(settings: Settings, values: Mapping[str, Any]) -> Iterator[BrokenRule]:
    """Yield every broken rule. `values` are the settings as written."""
    yield from _agent(settings, values)
    yield from _budgets(settings)
    yield from _disabled(values)
    yield from _expiry(settings, values)
    yield from _telegram(settings)
    yield from _mcp(settings)
    yield from _platforms(settings)
    yield from _urls(settings)
    yield from _files(settings)
    yield from _texts(settings)


def _agent(settings: Settings, values: Mapping[str, Any]) -> Iterator[BrokenRule]:
    if settings.agent.kind in _MODEL_KINDS:
        yield from _model(("agent",), settings.agent)
        yield from _named_agents(settings)
        return
    message = "has no effect without a model; remove it, or set kind = 'openai' or 'anthropic'"
    for name in values.get("agent", {}):
        if name in _MODEL_KEYS:
            yield ("agent", name), message, _KIND
    for table in _MODEL_TABLES:
        if values.get(table):
            yield (table,), message, _KIND


def _named_agents(settings: Settings) -> Iterator[BrokenRule]:
    tables = agent_tables(settings)
    for name, table in settings.agents.items():
        path: KeyPath = ("agents", name)
        if name == DEFAULT_AGENT:
            yield path, f"{DEFAULT_AGENT!r} is the name of the agent in [agent]; choose another"
        elif table.kind == "offline":
            yield (*path, "kind"), "expected one of 'openai', 'anthropic'"
        else:
            yield from _model(path, tables[name])
    owners: dict[str, str] = {}
    for name, key, index, place in places(settings):
        path = ("agents", name, key, index)
        platform, _, chat = place.partition("/")
        if platform not in _PLATFORMS or bool(chat) != (key == "chats"):
            example = ", as in 'telegram/-1001234567890'" if key == "chats" else ""
            yield path, f"expected one of {', '.join(_PLATFORMS)}{example}"
        elif (missing := _missing_table(settings, platform)) is not None:
            yield path, f"has no effect without [{missing}]", (missing,)
        elif owners.setdefault(place, name) != name:
            yield path, f"{owners[place]} answers there already"


def _model(path: KeyPath, agent: AgentTable) -> Iterator[BrokenRule]:
    kind: KeyPath = (*path, "kind")
    if agent.model is None:
        message = f"kind = {agent.kind!r} needs a model"
        yield (*path, "model"), message, ("agent", "model"), kind, _KIND
    if agent.kind == "anthropic":
        if agent.key is None:
            message = "kind = 'anthropic' needs a key: key = 'env:ANTHROPIC_API_KEY'"
            yield (*path, "key"), message, ("agent", "key"), kind, _KIND
        if agent.alternate:
            message = "has no effect with kind = 'anthropic'; remove it"
            yield (*path, "alternate"), message, kind, _KIND
        if "audio" in (agent.attachments or ()):
            message = "kind = 'anthropic' takes no audio; remove 'audio'"
            yield (*path, "attachments"), message, ("agent", "attachments"), kind, _KIND


def _budgets(settings: Settings) -> Iterator[BrokenRule]:
    """Check that budgets can be enforced: every model that is called needs a price."""
    agent = settings.agent
    if agent.budgets == Budgets() or agent.kind not in _MODEL_KINDS:
        return
    called = list(_called_models(settings))
    for path, model in called:
        if model not in agent.prices:
            name = json.dumps(model)
            message = f"budgets cannot be enforced without its price: add [agent.prices.{name}]"
            yield path, message, _PRICES
    prices = [agent.prices[model] for _, model in called if model in agent.prices]
    if prices and len(prices) == len(called) and not any(map(_costs_something, prices)):
        yield ("agent", "budgets"), "cannot be enforced: all prices are 0", _PRICES


def _called_models(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the models that will be called, each with the key that names it."""
    if settings.agent.model is not None:
        yield ("agent", "model"), settings.agent.model
    for name, agent in settings.agents.items():
        if agent.model is not None:
            yield ("agents", name, "model"), agent.model
    for name, table in (("compression", settings.compression), ("titles", settings.titles)):
        if table.enabled and table.model is not None:
            yield (name, "model"), table.model


def _costs_something(price: Price) -> bool:
    return bool(price.input or price.output)


def _disabled(values: Mapping[str, Any]) -> Iterator[BrokenRule]:
    for name in ("compression", "titles"):
        table = values.get(name, {})
        if table.get("enabled", True):
            continue
        for key in table:
            if key != "enabled":
                yield (name, key), "has no effect with enabled = false; remove one of them"


def _expiry(settings: Settings, values: Mapping[str, Any]) -> Iterator[BrokenRule]:
    written = values.get("expiry_by", {})
    tables: list[tuple[KeyPath, ExpiryPolicy, Mapping[str, Any]]] = [
        (("expiry",), settings.expiry, values.get("expiry", {})),
        *((("expiry_by", name), policy, written[name])
          for name, policy in settings.expiry_by.items()),
    ]  # fmt: skip
    for path, policy, keys in tables:
        mode = (*path, "mode")
        if "idle_minutes" in keys and policy.mode not in {"idle", "both"}:
            yield (*path, "idle_minutes"), f"has no effect with mode = {policy.mode!r}", mode
        if "at_hour" in keys and policy.mode not in {"daily", "both"}:
            yield (*path, "at_hour"), f"has no effect with mode = {policy.mode!r}", mode


def _telegram(settings: Settings) -> Iterator[BrokenRule]:
    telegram = settings.telegram
    if telegram is None:
        return
    if not (telegram.operators or telegram.users or telegram.chats or telegram.open
            or telegram.pairing):  # fmt: skip
        yield (
            _TELEGRAM,
            "nobody could talk to the bot: set users, operators or chats, or pairing = true to "
            "admit people one by one, or open = true to admit everybody",
            *((*_TELEGRAM, name) for name in ("operators", "users", "chats", "open", "pairing")),
        )
    if telegram.open and telegram.chats:
        yield ("telegram", "chats"), "has no effect with open = true; remove one of them"


def _mcp(settings: Settings) -> Iterator[BrokenRule]:
    for name, server in settings.mcp.items():
        if bool(server.command) == bool(server.url):
            path: KeyPath = ("mcp", name)
            yield path, "set either command or url", (*path, "command"), (*path, "url")
        for key, value in (("environment", server.environment), ("keys", server.keys)):
            if server.url and value:
                yield ("mcp", name, key), "has no effect with a url"


def _platforms(settings: Settings) -> Iterator[BrokenRule]:
    """Check the names of platforms; a runtime would take any, and wait for it in vain."""
    combined = [f"{platform}/{kind}" for platform in _PLATFORMS for kind in _CHAT_TYPES]
    expected = {
        ("runtime", "when_busy_by_platform"): (
            settings.runtime.when_busy_by_platform, _PLATFORMS, f"one of {', '.join(_PLATFORMS)}"
        ),
        ("expiry_by",): (
            settings.expiry_by, (*_PLATFORMS, *_CHAT_TYPES, *combined),
            f"a platform ({', '.join(_PLATFORMS)}), a chat type ({', '.join(_CHAT_TYPES)}), or "
            "both, as in 'telegram/group'",
        ),
    }  # fmt: skip
    for table, (names, known, description) in expected.items():
        for name in names:
            if name not in known:
                yield (*table, name), f"expected {description}{did_you_mean(name, known)}"
            elif (missing := _missing_table(settings, name.partition("/")[0])) is not None:
                yield (*table, name), f"has no effect without [{missing}]", (missing,)


def _missing_table(settings: Settings, platform: str) -> str | None:
    """Return the table that a platform needs and that is missing."""
    tables = {"telegram": settings.telegram, "http": settings.http}
    table = "http" if platform == "web" else platform
    return table if table in tables and tables[table] is None else None


def _urls(settings: Settings) -> Iterator[BrokenRule]:
    telegram, transcriber = settings.telegram, settings.transcriber
    urls: list[tuple[KeyPath, str | None]] = [
        (("agent", "base_url"), settings.agent.base_url),
        *((("agents", name, "base_url"), table.base_url)
          for name, table in settings.agents.items()),
        (("transcriber", "base_url"), None if transcriber is None else transcriber.base_url),
        (("telegram", "base_url"), None if telegram is None else telegram.base_url),
        *((("mcp", name, "url"), server.url) for name, server in settings.mcp.items()),
    ]  # fmt: skip
    for path, url in urls:
        if url is not None and not _is_url(url):
            yield path, "expected a URL: http://host/path or https://host/path"


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        port = url.port  # raises if it is not a number
    except ValueError:
        return False
    clean = text.isprintable() and " " not in text
    return clean and url.scheme in {"http", "https"} and bool(url.hostname) and port != 0


def _files(settings: Settings) -> Iterator[BrokenRule]:
    if "\0" in (settings.data or ""):  # the store reports everything else
        yield ("data",), "not a valid file name"
    if settings.metrics is not None:
        name = settings.metrics.file
        if "\0" in name or not PurePath(name).name:
            yield ("metrics", "file"), "not a valid file name"


def _texts(settings: Settings) -> Iterator[BrokenRule]:
    names = Texts.__struct_fields__
    for name in settings.texts:
        if name not in names:
            yield ("texts", name), f"unknown key{did_you_mean(name, names)}"
    known = {name: text for name, text in settings.texts.items() if name in names}
    for name, problem in problems(Texts(**known)):
        yield ("texts", name), problem
