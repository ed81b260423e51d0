"""`hermes setup`: connect a model, write a configuration and start a chat."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import trio

from hermes.agents.providers.base import AuthenticationFailed, Endpoint, ProviderError
from hermes.cli.model_calls import call_model, list_models
from hermes.cli.prompts import ask, ask_secret, choose, confirm, say, say_wrapped
from hermes.cli.providers import OLLAMA, PROVIDERS, Provider
from hermes.errors import ContextOverflow
from hermes.redaction import Secret
from hermes.run.config_file import NAME, standard_path
from hermes.run.status import write
from hermes.settings import load
from hermes.settings.installation import command
from hermes.standard_output import OutputFailed

DESCRIPTION = """\
Connect a model: asks for a provider and a key, checks them with one real call, writes a
configuration that only you can read, and starts a chat.
"""
MAX_LISTED = 12
OLLAMA_DOWN = "Ollama is not running at {where}; to start it: ollama serve"
OLLAMA_EMPTY = "Ollama has no model; to get one: ollama pull llama3.2"
LEFT = "\nSetup was left; nothing was changed.\n"


@attrs.define(kw_only=True)
class Draft:
    """What the user has answered so far."""

    provider: Provider
    base_url: str
    key: str = ""
    """The API key; empty: there is none, or it is in the environment."""
    model: str = ""

    @property
    def in_environment(self) -> str | None:
        """The environment variable with the key, if it is taken from there."""
        variable = self.provider.key_variable
        return variable if not self.key and variable and os.environ.get(variable) else None

    def endpoint(self) -> Endpoint:
        """Return the model as agents use it."""
        key = Secret.env(self.in_environment) if self.in_environment else Secret(self.key or None)
        name = self.provider.name if self.provider.key_variable else "the server"
        return Endpoint(base_url=self.base_url, model=self.model, key=key, name=name)


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="hermes setup",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=standard_path(),
        help="the file to write (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-chat", action="store_true", help="do not start a chat at the end")
    options = parser.parse_args(arguments)
    # Imported first, because it ends the program if [bot] is not installed.
    from hermes.run.__main__ import CHAT, main as run  # noqa: PLC0415 - it imports the whole bot

    try:
        written = _setup(options.config)
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write(LEFT)
        return 130
    except (OutputFailed, BrokenPipeError):
        raise
    except OSError as error:
        sys.stderr.write(f"Cannot write {error.filename}: {error.strerror}\n")
        return 1
    if not written:
        return 0
    path: Path = options.config
    standard = path == standard_path() and not Path(NAME).exists()
    chat = [] if standard else ["--config", str(path)]
    if options.no_chat or not sys.stdin.isatty():
        say(f"To chat: {command(shlex.join(chat))}")
        return 0
    say()
    return run(chat, CHAT)


def _setup(path: Path) -> bool:
    """Ask, check and write; returns whether a configuration was written."""
    say("This connects a model to Hermes. Ctrl-C leaves everything as it is.")
    if path == standard_path() and Path(NAME).exists():
        say(f"Note: in this folder, {NAME} is read instead of the file that is written now.")
    question = f"{path} exists. Replace it, and keep the old file under another name?"
    if path.exists() and not confirm(question, default=False):
        say("It was left as it is.")
        return False
    draft = _ask_draft()
    while (problem := _check(draft)) is not None:
        say_wrapped(_sentence(draft, problem))
        draft = _correct(draft, problem)
    say(f"Written: {_write(draft, path)}")
    return True


def _ask_draft() -> Draft:
    draft = _ask_provider()
    draft.key = _ask_key(draft)
    draft.model = _ask_model(draft)
    return draft


def _ask_provider() -> Draft:
    say("\nWhich provider?")
    running = _is_running(OLLAMA.url(os.environ))
    found = [bool(each.key_variable and os.environ.get(each.key_variable)) for each in PROVIDERS]
    default = found.index(True) if any(found) else PROVIDERS.index(OLLAMA) if running else 0
    options = [_describe(each, running=running) for each in PROVIDERS]
    provider = PROVIDERS[choose("Number", options, default)]
    url = provider.url(os.environ)
    return Draft(provider=provider, base_url=_ask_url(url) if provider.own_url else url)


def _describe(provider: Provider, *, running: bool) -> str:
    if provider is OLLAMA:
        where = urlsplit(provider.url(os.environ)).netloc
        return f"Ollama ({'running' if running else 'not running'} at {where})"
    if provider.key_variable is None:
        return provider.name
    if os.environ.get(provider.key_variable):
        return f"{provider.name} ({provider.key_variable} is set)"
    return provider.name


def _is_running(ollama_url: str) -> bool:
    endpoint = Endpoint(base_url=ollama_url, model="")
    return trio.run(list_models, OLLAMA.kind, endpoint) is not None


def _ask_url(default: str) -> str:
    def problem(answer: str) -> str | None:
        try:
            url = urlsplit(answer)
            valid = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
        except ValueError:
            valid = False
        return None if valid else "type a URL, such as http://127.0.0.1:8000/v1"

    return ask("URL, up to and including /v1", default, problem)


def _ask_key(draft: Draft) -> str:
    """Ask for the key. An empty answer means the environment, or no key."""
    if not draft.provider.has_key:
        return ""
    variable = draft.provider.key_variable
    while True:
        if variable and os.environ.get(variable):
            return ask_secret(f"API key, not shown (Enter: use {variable})")
        if variable is None:
            return ask_secret("API key, not shown (Enter: none)")
        if key := ask_secret("API key, not shown"):
            return key
        say(f"  {draft.provider.name} needs a key.")


def _ask_model(draft: Draft) -> str:
    listed = trio.run(list_models, draft.provider.kind, draft.endpoint())
    default = draft.model or draft.provider.model or ""
    if listed and (not default or default not in listed):
        default = default if draft.model else listed[0]
    if listed:
        more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
        say(f"Models: {', '.join(listed[:MAX_LISTED])}{more}")
    elif draft.provider is OLLAMA:
        say(OLLAMA_EMPTY if listed is not None else _ollama_down(draft))
    return ask("Model", default)


def _check(draft: Draft) -> ProviderError | ContextOverflow | None:
    """Call the model once; returns what went wrong."""
    say(f"Calling {draft.model} at {draft.base_url}")
    try:
        seconds = trio.run(call_model, draft.provider.kind, draft.endpoint())
    except (ProviderError, ContextOverflow) as error:
        return error
    say(f"  It answered in {seconds:.1f} seconds.")
    return None


def _sentence(draft: Draft, problem: Exception) -> str:
    """Return what went wrong, and what to do."""
    text = str(problem).rstrip(".")
    sentence = f"{text[:1].upper()}{text[1:]}."
    down = draft.provider is OLLAMA and not _is_running(draft.base_url)
    return f"{sentence} {_ollama_down(draft)}" if down else sentence


def _ollama_down(draft: Draft) -> str:
    return OLLAMA_DOWN.format(where=urlsplit(draft.base_url).netloc)


def _correct(draft: Draft, problem: Exception) -> Draft:
    """Let the user change what may be wrong; returns the answers so far."""
    choices = ["try again", "another key", "another model", "another URL", "another provider"]
    if not draft.provider.has_key:
        choices.remove("another key")
    rejected = isinstance(problem, AuthenticationFailed) and draft.provider.has_key
    default = choices.index("another key" if rejected else "try again")
    match choices[choose("What now? (Ctrl-C leaves)", choices, default)]:
        case "another key":
            draft.key = _ask_key(draft)
        case "another model":
            draft.model = _ask_model(draft)
        case "another URL":
            draft.base_url = _ask_url(draft.base_url)
        case "another provider":
            return _ask_draft()
    return draft


def _write(draft: Draft, path: Path) -> Path:
    """Write the configuration and the key, for the user only; returns the path."""
    path = path.expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    values = {"kind": draft.provider.kind, "model": draft.model, "base_url": draft.base_url}
    if draft.in_environment:
        values["key"] = f"env:{draft.in_environment}"
    elif draft.key:
        key_file = path.with_name(f"{draft.provider.id}.key")
        write(key_file, f"{draft.key}\n")
        values["key"] = f"file:{key_file}"
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    text = "\n".join(
        [
            f"# Written by `hermes setup` on {time.strftime('%Y-%m-%d')}.",
            f"# Every key with its meaning: {command('run --example-config')}",
            "[agent]",
            *lines,
            "",
        ]
    )
    load(text, {}, os.environ)  # it must be valid
    if path.exists():
        _keep(path)
    write(path, text)
    return path


def _keep(path: Path) -> None:
    """Keep the old file under a free name."""
    number = 1
    while (kept := path.with_name(f"{path.name}.old{number}")).exists():
        number += 1
    os.link(path, kept)
    say(f"The old file is now {kept}")
