"""From what the settings name to the things themselves: keys, functions, paths."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.messages import Hooks
from hermes.secrets import Secret
from hermes.settings import BadSettings, Problem, Reference, Settings


def secret(key: str, reference: Reference) -> Secret:
    """What a reference names. Raises `BadSettings` where there is nothing."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        if not os.environ.get(name):
            raise BadSettings([Problem(0, key, f"the environment has no {name}; set it")])
        return Secret.env(name)
    try:
        value = Path(name).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadSettings([Problem(0, key, f"{name} cannot be read: {why}")]) from None
    if not value:
        raise BadSettings([Problem(0, key, f"{name} is empty")])
    return Secret(value)


def named(key: str, place: str) -> Any:
    """What `module:name` names. Raises `BadSettings` where there is nothing."""
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


def secrets(settings: Settings) -> list[str]:
    """Every value that must not be shown."""
    agent, telegram = settings.agent, settings.telegram
    named = [Secret.env("OPENAI_API_KEY")] if agent.kind == "openai" else []
    named += [secret("agent.key", agent.key)] if agent.key is not None else []
    named += [secret("telegram.token", telegram.token)] if telegram is not None else []
    values = [each.reveal() for each in named]
    values += agent.headers.values()
    for server in settings.mcp.values():
        values += server.environment.values()
    return [value for value in values if value]


def hooks(settings: Settings) -> Hooks:
    """The functions that hear of boundaries."""
    return {
        event: [named(f"hooks.{event}", place) for place in places]
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
    places = [("agent.tools", place) for place in agent.tools]
    for event, hooks in settings.hooks.items():
        places += [(f"hooks.{event}", hook) for hook in hooks]
    for key, place in places:
        yield from _problems(named, key, place)


def _problems(resolve: Any, key: str, what: str) -> Iterator[Problem]:
    try:
        resolve(key, what)
    except BadSettings as bad:
        yield from bad.problems
