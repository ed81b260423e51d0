"""What settings must hold together: keys that would have no effect, and such as lack another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, get_args
from urllib.parse import urlsplit

from hermes.settings.schema import AgentTable, BudgetTable, ExpiryTable, Platform, Settings
from hermes.settings.toml_lines import Path

_OF_A_MODEL = (
    "model", "base_url", "key", "system", "max_tokens", "parameters", "headers", "alternate",
    "tools", "prices", "budgets",
)  # fmt: skip
_MODELLED = ("openai", "anthropic")
_CHATS = ("dm", "group", "channel")


def broken_rules(settings: Settings, told: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Where a rule is broken, and what to do."""
    yield from _agent(settings, told)
    yield from _switched_off(told)
    yield from _expiry(settings, told)
    yield from _telegram(settings)
    yield from _mcp(settings)
    yield from _places(settings)
    yield from _addresses(settings)
    yield from _files(settings)


def _agent(settings: Settings, told: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if settings.agent.kind in _MODELLED:
        yield from _model(settings.agent)
        compression = settings.compression
        if compression.max_output >= compression.window:
            yield ("compression",), "max_output must be smaller than window, of which it is a part"
        return
    why = "it has no effect without a model; take it out, or say kind = 'openai' or 'anthropic'"
    for name in told.get("agent", {}):
        if name in _OF_A_MODEL:
            yield ("agent", name), why
    for table in ("compression", "titles", "mcp"):
        if told.get(table):
            yield (table,), why


def _model(agent: AgentTable) -> Iterator[tuple[Path, str]]:
    if agent.model is None:
        yield ("agent",), f"kind = {agent.kind!r} needs a model"
    if agent.budgets != BudgetTable() and _unpriced(agent):
        yield ("agent", "budgets"), f"it has no effect without [agent.prices.{agent.model!r}]"
    if agent.kind == "anthropic":
        if agent.key is None:
            yield ("agent",), "kind = 'anthropic' needs a key: key = 'env:ANTHROPIC_API_KEY'"
        if agent.alternate:
            yield ("agent", "alternate"), "it has no effect with kind = 'anthropic'; take it out"


def _unpriced(agent: AgentTable) -> bool:
    """Whether nobody could tell what has been spent; other endpoints may tell it themselves."""
    return agent.base_url is None and agent.model not in agent.prices


def _switched_off(told: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for name in ("compression", "titles"):
        table = told.get(name, {})
        if table.get("enabled", True):
            continue
        for key in table:
            if key != "enabled":
                yield (name, key), "it has no effect with enabled = false; take one of them out"


def _expiry(settings: Settings, told: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    tables: list[tuple[Path, ExpiryTable, Mapping[str, Any]]] = [
        (("expiry",), settings.expiry, told.get("expiry", {}))
    ]
    by = told.get("expiry_by", {})
    tables += [(("expiry_by", name), table, by[name]) for name, table in settings.expiry_by.items()]
    for path, table, said in tables:
        for key, modes in (("idle_minutes", ("idle", "both")), ("at_hour", ("daily", "both"))):
            if key in said and table.mode not in modes:
                yield (*path, key), f"it has no effect with mode = {table.mode!r}"


def _telegram(settings: Settings) -> Iterator[tuple[Path, str]]:
    telegram = settings.telegram
    if telegram is None:
        return
    if not (telegram.operators or telegram.users or telegram.chats or telegram.open
            or telegram.pairing):  # fmt: skip
        yield (
            ("telegram",),
            "nobody could speak with it: name users, operators or chats, or say pairing = true to "
            "let people in one by one, or open = true to let in everybody",
        )
    if telegram.open and telegram.chats:
        yield ("telegram", "chats"), "it has no effect with open = true; take one of them out"


def _mcp(settings: Settings) -> Iterator[tuple[Path, str]]:
    for name, server in settings.mcp.items():
        if bool(server.command) == bool(server.url):
            yield ("mcp", name), "give either a command or a url"
        for key in ("environment", "keys"):
            if server.url and getattr(server, key):
                yield ("mcp", name, key), "it has no effect with a url"


def _places(settings: Settings) -> Iterator[tuple[Path, str]]:
    platforms = get_args(Platform)
    known = {*platforms, *_CHATS, *(f"{one}/{kind}" for one in platforms for kind in _CHATS)}
    named: list[Path] = [("runtime", "busy_on", name) for name in settings.runtime.busy_on]
    for name in settings.expiry_by:
        if name in known:
            named.append(("expiry_by", name))
        else:
            yield (
                ("expiry_by", name),
                f"say a platform ({', '.join(platforms)}), a kind of chat ({', '.join(_CHATS)}), "
                "or both, as in 'telegram/group'",
            )
    for path in named:
        if settings.telegram is None and str(path[-1]).startswith("telegram"):
            yield path, "it has no effect without [telegram]"


def _addresses(settings: Settings) -> Iterator[tuple[Path, str]]:
    telegram = settings.telegram
    named: list[tuple[Path, str | None]] = [
        (("agent", "base_url"), settings.agent.base_url),
        (("telegram", "base_url"), None if telegram is None else telegram.base_url),
        *((("mcp", name, "url"), server.url) for name, server in settings.mcp.items()),
    ]
    for path, address in named:
        if address is not None and not _is_address(address):
            yield path, "it is no address: say http://host/path or https://host/path"


def _is_address(text: str) -> bool:
    try:
        found = urlsplit(text)
        port = found.port  # raises where it is none
    except ValueError:
        return False
    clean = text.isprintable() and " " not in text
    return clean and found.scheme in {"http", "https"} and bool(found.hostname) and port != 0


def _files(settings: Settings) -> Iterator[tuple[Path, str]]:
    why = "it is no name of a file"
    if "\0" in (settings.data or ""):  # whatever else is wrong with it, the store says
        yield ("data",), why
    if settings.metrics is not None:
        name = settings.metrics.file
        if "\0" in name or not PurePath(name).name:
            yield ("metrics", "file"), why
