"""The configuration of a command: a file, options and environment variables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import attrs

from hermes.config import data_path, database_of, is_database_url
from hermes.run.config_file import ConfigFile, find_config
from hermes.settings import Check, Problem, Settings, SettingsError, load
from hermes.settings.environment import chosen_variable
from hermes.settings.references import (
    Reference,
    expand_path as expand_path,
    is_reference,
    read_secret,
)
from hermes.settings.schema import AgentKind, LogForm

MAX_PORT = 65_535
MAX_DIGITS = 20
"""Digits of a port on the command line, which may begin with zeros."""


def add_file_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that choose the configuration file and the database."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE",
        help="read the configuration from this TOML file (default: hermes.toml in the current "
             "folder, else ~/.config/hermes/hermes.toml)")  # fmt: skip
    add("--db", type=database_of, metavar="DATABASE",
        help="database: a file (default: ~/.local/share/hermes/state.db) or the URL of a "
             "PostgreSQL database")  # fmt: skip


def add_agent_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that replace values of the configuration."""
    add = parser.add_argument
    add("--agent", choices=get_args(AgentKind), help="kind of agent")
    add("--model", metavar="NAME", help="name of the model")
    add("--log", choices=get_args(LogForm), help="format of the log")


def http_address(text: str) -> dict[str, Any]:
    """Return the settings that HOST:PORT stands for."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        message = f"expected HOST:PORT, as in 127.0.0.1:8420, not {text:.50}"
        raise argparse.ArgumentTypeError(message)
    if len(port) > MAX_DIGITS or int(port) > MAX_PORT:
        message = f"a port is a number from 0 to {MAX_PORT}, not {port:.50}"
        raise argparse.ArgumentTypeError(message)
    return {"host": host.strip("[]"), "port": int(port)}


@attrs.frozen
class Configuration:
    """Where the settings of a command come from."""

    file: ConfigFile | None
    overrides: dict[str, Any]
    """The settings that were given on the command line."""
    open_page: bool = False
    """Whether to open the web page in a browser."""
    force: bool = False
    """Whether to open a database that was moved to another one."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Configuration:
        """Return the configuration that the options name."""
        given = vars(options)
        file, open_page = find_config(options.config), bool(given.get("open"))
        return cls(file, _overrides(given), open_page, bool(given.get("force")))

    def find_again(self) -> Configuration:
        """Return the same configuration; if it had no file, with the one that there is now."""
        return self if self.file is not None else attrs.evolve(self, file=find_config())

    @property
    def name(self) -> str:
        """The path of the file, for people."""
        return "configuration" if self.file is None else str(self.file.path)

    def describe(self) -> str:
        """Return a line for the banner: which file was read."""
        if self.file is None:
            return "There is no configuration file."
        return f"Configuration: {self.file.path.absolute()}"

    def text(self) -> str:
        """Return the text of the file; empty without one. Raises `SettingsError`."""
        return "" if self.file is None else self.file.read()

    def load(self, check: Check | None = None) -> Settings:
        """Return the settings; `check` looks for further problems. Raises `SettingsError`."""
        return load(self.text(), self.overrides, os.environ, check)

    def database(self) -> Path | str:
        """Return the path or URL of the database; nothing else of the file needs to be valid.

        Raises `SettingsError` or `OSError` if the file cannot be read.
        """
        data = self.overrides.get("data")
        if data is None and self.file is not None:
            data = self.file.values().get("data")
        return read_database(data if isinstance(data, str) else None)

    def reason(self) -> str:
        """Return why the agent of these settings was chosen, as the end of a sentence."""
        written = {} if self.file is None else self.file.values().get("agent", {})
        given = self.overrides.get("agent", {})
        if "kind" in given:
            return f"because of --agent {given['kind']}"
        if "kind" in written:
            return "as configured"
        if (variable := chosen_variable({**written, **given}, os.environ)) is not None:
            return f"because {variable} is set"
        return "because of --model" if "model" in given else "as configured"

    def print_problems(self, problems: Sequence[Problem]) -> int:
        """Print a line for each problem; returns the exit code."""
        for problem in problems:
            sys.stderr.write(f"{self.name}: {problem}\n")
        return 2


def read_database(data: str | None) -> Path | str:
    """Return the path or the URL of the database that the setting `data` names.

    Raises `SettingsError` if it is a reference to a URL that does not exist.
    """
    if not data:
        return data_path()
    if is_reference(data):
        try:
            found = read_secret(Reference(data)).reveal() or ""
        except ValueError as error:
            raise SettingsError([Problem(0, "data", str(error))]) from None
        if not is_database_url(found):
            text = f"{data} is not the URL of a database; it begins with postgresql://"
            raise SettingsError([Problem(0, "data", text)])
        return found
    return data if is_database_url(data) else expand_path(data)


def configured_database() -> Path | str:
    """Return the database of the configuration file, if it names one; else the default.

    Nothing else of the file needs to be valid. Raises `SettingsError` or `OSError` if it cannot be
    read.
    """
    file = find_config()
    data = None if file is None else file.values().get("data")
    return read_database(None if data is None else str(data))


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    agent = {"kind": options.get("agent"), "model": options.get("model")}
    for name, table in (("agent", agent), ("log", {"form": options.get("log")})):
        if given := {key: value for key, value in table.items() if value is not None}:
            overrides[name] = given
    if options.get("db") is not None:
        overrides["data"] = str(options["db"])
    if options.get("http") is not None or options.get("open"):
        overrides["http"] = options["http"] or {}
    return overrides
