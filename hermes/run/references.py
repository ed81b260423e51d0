"""Resolve what the settings refer to: secrets, Python functions, programs and paths."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hermes.adapters.http.hooks.signatures import key_of
from hermes.agents.tools.toolbox import Tool, tool
from hermes.messages import Hooks
from hermes.redaction import Secret, url_credentials
from hermes.redaction.urls import named_credentials
from hermes.run.configuration import expand_path, read_database
from hermes.settings import Problem, Reference, Settings, SettingsError
from hermes.settings.agents import DEFAULT_AGENT, agent_tables
from hermes.settings.environment import default_base_url
from hermes.settings.http import HookTable
from hermes.settings.installation import is_installed, missing_extra
from hermes.settings.references import is_reference, read_secret
from hermes.settings.schema import AgentTable, McpTable, TranscriberTable
from hermes.user_code import contained, describe

_ENDPOINT = ("kind", "key", "base_url")
"""Keys that say where a model is called, and how."""


def resolve_secret(key: str, reference: Reference) -> Secret:
    """Return the secret that `env:NAME` or `file:PATH` refers to.

    Raises `SettingsError` if there is none; `key` is the setting with the reference.
    """
    try:
        return read_secret(reference)
    except ValueError as error:
        raise _error(key, str(error)) from None


def resolve_function(key: str, name: str) -> Callable[..., Any]:
    """Return the function that `module:name` refers to. Raises `SettingsError` if there is none."""
    function: Callable[..., Any] = _import(key, name)
    if not callable(function):
        raise _error(key, f"{name} is not a function")
    return function


def resolve_tool(key: str, name: str) -> Tool:
    """Return the tool that `module:name` refers to.

    Raises `SettingsError` if there is none, or if it has no signature that a model could call.
    """
    if isinstance(found := _import(key, name), Tool):
        return found
    function = resolve_function(key, name)
    try:
        return tool(function)
    except (TypeError, ValueError) as error:
        raise _error(key, f"{name} cannot be used as a tool: {error}") from None


def resolve_hooks(settings: Settings) -> Hooks:
    """Return the functions to call at session boundaries, by event."""
    events: dict[Any, list[str]] = msgspec.structs.asdict(settings.hooks)
    return {
        event: [resolve_function(f"hooks.{event}", name) for name in names]
        for event, names in events.items()
    }


def server_secrets(server: str, table: McpTable) -> dict[str, str]:
    """Return the secret environment variables of an MCP server."""
    return {
        name: resolve_secret(f"mcp.{server}.keys.{name}", reference).reveal() or ""
        for name, reference in table.keys.items()
    }


def transcriber_key(table: TranscriberTable | None) -> Secret:
    """Return the API key of the transcriber; an empty one if it has none."""
    if table is None or table.key is None:
        return Secret()
    return resolve_secret("transcriber.key", table.key)


def hook_tables(settings: Settings) -> dict[str, HookTable]:
    """Return the webhooks of the HTTP server by name."""
    return {} if settings.http is None else settings.http.hooks


def secret_values(settings: Settings) -> list[str]:
    """Return every value in the settings that must be redacted."""
    agents, telegram = agent_tables(settings), settings.telegram
    openai = any(agent.kind == "openai" for agent in agents.values())
    secrets = [Secret.env("OPENAI_API_KEY")] if openai else []
    secrets += [
        resolve_secret(f"{_table(name)}.key", agent.key)
        for name, agent in agents.items()
        if agent.key is not None
    ]
    secrets += [resolve_secret("telegram.token", telegram.token)] if telegram is not None else []
    secrets.append(transcriber_key(settings.transcriber))
    secrets += [
        resolve_secret(f"http.hooks.{name}.secret", hook.secret)
        for name, hook in hook_tables(settings).items()
    ]
    values = [secret.reveal() for secret in secrets]
    for name, server in settings.mcp.items():
        values += server_secrets(name, server).values()
    headers = [agent.headers for agent in agents.values()]
    for table in (*headers, *(server.environment for server in settings.mcp.values())):
        values += named_credentials(table.items())
    if settings.data is not None and is_reference(settings.data):
        values += url_credentials(str(read_database(settings.data)))
    values += [value for url in _urls(settings) for value in url_credentials(url)]
    return [value for value in values if value]


def _urls(settings: Settings) -> Iterator[str]:
    """Yield the URLs in the settings, and those of the environment that replace missing ones."""
    telegram, transcriber = settings.telegram, settings.transcriber
    for agent in agent_tables(settings).values():
        if agent.kind in {"openai", "anthropic"}:
            yield agent.base_url or default_base_url(agent.kind, os.environ)
    named = [telegram.base_url if telegram is not None else None, settings.data]
    named += [transcriber.base_url if transcriber is not None else None]
    yield from filter(None, [*named, *(server.url for server in settings.mcp.values())])
    yield from (argument for server in settings.mcp.values() for argument in server.command)


def check_references(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for everything that the settings refer to and that does not exist."""
    yield from _problems(lambda _, data: read_database(data), "data", settings.data)
    if settings.telegram is not None:
        yield from _problems(resolve_secret, "telegram.token", settings.telegram.token)
    if settings.transcriber is not None and settings.transcriber.key is not None:
        yield from _problems(resolve_secret, "transcriber.key", settings.transcriber.key)
    yield from _check_agents(settings)
    if settings.metrics is not None:
        folder = expand_path(settings.metrics.file).parent
        if not folder.is_dir():
            yield Problem(0, "metrics.file", f"there is no folder {folder}; create it first")
    for event, names in msgspec.structs.asdict(settings.hooks).items():
        for index, name in enumerate(names):
            yield from _problems(resolve_function, f"hooks.{event}[{index}]", name)
    for name, server in settings.mcp.items():
        yield from _check_server(f"mcp.{name}", server)
    yield from _check_extras(settings)


def _table(name: str) -> str:
    return "agent" if name == DEFAULT_AGENT else f"agents.{name}"


def _check_agents(settings: Settings) -> Iterator[Problem]:
    for name, agent in agent_tables(settings).items():
        table = settings.agents.get(name, settings.agent)  # without what it inherits
        key = _table(name)
        if table.key is not None:
            yield from _problems(resolve_secret, f"{key}.key", table.key)
        if _lacks_openai_key(agent):
            message = "OpenAI needs a key: set OPENAI_API_KEY, or base_url for another endpoint"
            endpoint = (f"{each}.{part}" for each in {"agent", key} for part in _ENDPOINT)
            yield Problem(0, f"{key}.key", message, because=tuple(endpoint))
        yield from _check_tools(f"{key}.tools", table.tools or ())


def _error(key: str, message: str) -> SettingsError:
    return SettingsError([Problem(0, key, message)])


def _import(key: str, name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise _error(key, f"expected module:name, got {name!r}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)  # last, so that no file there replaces a module of ours
    with contained() as caught:
        imported = importlib.import_module(module)
    if isinstance(caught.error, ModuleNotFoundError) and caught.error.name == module:
        advice = f"put {module.replace('.', '/')}.py into {folder}, or install the module"
        raise _error(key, f"there is no module {module}; {advice}")
    if caught.error is not None:
        raise _error(key, f"cannot import {module}: {describe(caught.error)}")
    try:
        return getattr(imported, attribute)
    except AttributeError:
        raise _error(key, f"{module} has no {attribute}; check the name") from None


def _lacks_openai_key(agent: AgentTable) -> bool:
    variables = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    own_endpoint = agent.base_url is None and not any(map(os.environ.get, variables))
    return agent.kind == "openai" and agent.key is None and own_endpoint


def _check_tools(key: str, names: Iterable[str]) -> Iterator[Problem]:
    tools: set[str] = set()
    for index, name in enumerate(names):
        try:
            found = resolve_tool(f"{key}[{index}]", name).name
        except SettingsError as error:
            yield from error.problems
            continue
        if found in tools:
            message = f"{name} is the second tool with this name; rename or remove it"
            yield Problem(0, f"{key}[{index}]", message)
        tools.add(found)


def _check_extras(settings: Settings) -> Iterator[Problem]:
    for extra, table in (("http", settings.http), ("otel", settings.otel)):
        if table is not None and not is_installed(extra):
            yield Problem(0, extra, missing_extra(extra))
    for name, hook in hook_tables(settings).items():
        yield from _problems(_check_hook, f"http.hooks.{name}.secret", hook)


def _check_hook(key: str, hook: HookTable) -> None:
    """Raise `SettingsError` if the secret of a webhook is missing or not valid."""
    secret = resolve_secret(key, hook.secret)
    try:
        key_of(hook, secret.reveal() or "")
    except ValueError as error:
        raise _error(key, str(error)) from None


def _check_server(key: str, server: McpTable) -> Iterator[Problem]:
    for name, reference in server.keys.items():
        yield from _problems(resolve_secret, f"{key}.keys.{name}", reference)
    if importlib.util.find_spec("mcp") is None:
        yield Problem(0, key, missing_extra("mcp"))
    if server.command and not shutil.which(server.command[0], path=server.environment.get("PATH")):
        message = f"program {server.command[0]} not found; install it or give its full path"
        yield Problem(0, f"{key}.command", message)


def _problems(resolve: Callable[[str, Any], object], key: str, name: object) -> Iterator[Problem]:
    try:
        resolve(key, name)
    except SettingsError as error:
        yield from error.problems
