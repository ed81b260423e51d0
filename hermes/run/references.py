"""From what the settings name to the things themselves: keys, functions, programs, paths."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hermes.agents.tools.toolbox import Tool, tool as made
from hermes.messages import Hooks
from hermes.redaction.keys import Secret
from hermes.settings import BadSettings, Problem, Reference, Settings
from hermes.settings.schema import AgentTable, McpTable

_SECRET = re.compile("key|token|secret|passw|auth|cookie|credential", re.IGNORECASE)
"""Names of headers and variables whose values are secrets; LANG and X-Team hold common words."""


def secret(key: str, reference: Reference) -> Secret:
    """What a reference names. Raises `BadSettings` where there is nothing."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        if not os.environ.get(name):
            raise BadSettings([Problem(0, key, f"the environment has no {name}; set it")])
        return Secret.env(name)
    try:
        value = place(name).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadSettings([Problem(0, key, f"{name} cannot be read: {why}")]) from None
    if not value:
        raise BadSettings([Problem(0, key, f"{name} is empty")])
    return Secret(value)


def place(name: str) -> Path:
    """The path of that name, from the user's own folder where it begins with ~."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # there is no such user; that there is no such file is told later
        return Path(name)


def function(key: str, place: str) -> Callable[..., Any]:
    """The function that `module:name` names. Raises `BadSettings` where there is none."""
    found: Callable[..., Any] = _named(key, place)
    if not callable(found):
        raise BadSettings([Problem(0, key, f"{place} is not a function")])
    return found


def tool(key: str, place: str) -> Tool:
    """The tool that `module:name` names. Raises `BadSettings` where a model could not call it."""
    if isinstance(found := _named(key, place), Tool):
        return found
    try:
        return made(function(key, place))
    except (TypeError, ValueError) as error:
        if isinstance(error, BadSettings):
            raise
        raise BadSettings([Problem(0, key, f"{place} cannot be a tool: {error}")]) from None


def _named(key: str, place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon or not module or not name:
        raise BadSettings([Problem(0, key, f"{place!r} is not of the form module:name")])
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise BadSettings([Problem(0, key, f"{module} has no {name}")]) from None
    except Exception as error:  # noqa: BLE001 - foreign code, which may do anything
        why = f"{type(error).__name__}: {error}"
        raise BadSettings([Problem(0, key, f"{module} cannot be imported: {why}")]) from None


def keys(server: str, table: McpTable) -> dict[str, str]:
    """The keys that a server with tools is given, by the names of its variables."""
    return {
        name: secret(f"mcp.{server}.keys.{name}", reference).reveal() or ""
        for name, reference in table.keys.items()
    }


def secrets(settings: Settings) -> list[str]:
    """Every value that must not be shown."""
    agent, telegram = settings.agent, settings.telegram
    named = [Secret.env("OPENAI_API_KEY")] if agent.kind == "openai" else []
    named += [secret("agent.key", agent.key)] if agent.key is not None else []
    named += [secret("telegram.token", telegram.token)] if telegram is not None else []
    values = [each.reveal() for each in named]
    for name, server in settings.mcp.items():
        values += keys(name, server).values()
    for table in (agent.headers, *(server.environment for server in settings.mcp.values())):
        values += [value for name, value in table.items() if _SECRET.search(name)]
    return [value for value in values if value]


def hooks(settings: Settings) -> Hooks:
    """The functions that hear of boundaries."""
    return {
        event: [function(f"hooks.{event}", place) for place in places]
        for event, places in settings.hooks.items()
    }


def unresolved(settings: Settings) -> Iterator[Problem]:
    """Every reference and name that leads nowhere."""
    agent, telegram = settings.agent, settings.telegram
    references = [("agent.key", agent.key)]
    references += [("telegram.token", telegram.token)] if telegram is not None else []
    for key, reference in references:
        if reference is not None:
            yield from _problems(secret, key, reference)
    if agent.kind == "openai" and agent.key is None and _is_openais(agent):
        why = "OpenAI wants a key: set OPENAI_API_KEY, or say with base_url where the model is"
        yield Problem(0, "agent", why)
    yield from _uncallable(agent.tools)
    if settings.metrics is not None and not place(settings.metrics.file).parent.is_dir():
        yield Problem(0, "metrics.file", "its folder does not exist; create it first")
    for event, hooks in settings.hooks.items():
        for hook in hooks:
            yield from _problems(function, f"hooks.{event}", hook)
    for name, server in settings.mcp.items():
        yield from _unserved(f"mcp.{name}", server)


def _is_openais(agent: AgentTable) -> bool:
    """Whether the model is OpenAI's own, and there is no key."""
    variables = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    return agent.base_url is None and not any(map(os.environ.get, variables))


def _uncallable(places: Iterable[str]) -> Iterator[Problem]:
    names: set[str] = set()
    for place in places:
        try:
            name = tool("agent.tools", place).name
        except BadSettings as bad:
            yield from bad.problems
            continue
        if name in names:
            yield Problem(0, "agent.tools", f"{place} is the second tool of that name")
        names.add(name)


def _unserved(key: str, server: McpTable) -> Iterator[Problem]:
    for name, reference in server.keys.items():
        yield from _problems(secret, f"{key}.keys.{name}", reference)
    if importlib.util.find_spec("mcp") is None:
        yield Problem(0, key, "servers need the package mcp: pip install 'hermes-runtime[mcp]'")
    if server.command and not shutil.which(server.command[0], path=server.environment.get("PATH")):
        why = f"there is no program {server.command[0]}; install it, or give its whole path"
        yield Problem(0, f"{key}.command", why)


def _problems(resolve: Any, key: str, what: str) -> Iterator[Problem]:
    try:
        resolve(key, what)
    except BadSettings as bad:
        yield from bad.problems
