"""Where the configuration file is: named by the user, in the current folder, or in the home."""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import Any

import attrs

from hermes.settings import Problem, SettingsError
from hermes.settings.installation import command
from hermes.store.files.problems import is_temporary

NAME = "hermes.toml"


def standard_path() -> Path:
    """Return the standard place of the configuration file, below `$XDG_CONFIG_HOME`."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "hermes" / NAME


@attrs.frozen
class ConfigFile:
    """A configuration file; it may be missing if the user has named it."""

    path: Path
    named: bool = False
    """Whether the user has named this file."""

    def read(self) -> str:
        """Return the text.

        Raises `SettingsError` if there is none that can be used, and `OSError` if it may be
        readable later.
        """
        try:
            # A program must not be configured by whoever can write to a shared folder.
            if not self.named and self.path.stat().st_uid not in {os.geteuid(), 0}:
                raise _error(f"belongs to another user; to use it: --config {self.path}")
            return self.path.read_bytes().decode()
        except FileNotFoundError:
            raise _error(self._how_to_write()) from None
        except IsADirectoryError:
            raise _error("this is a folder; name a file") from None
        except PermissionError:
            raise _error("you may not read the file; check its owner and mode") from None
        except OSError as error:
            if is_temporary(error):
                raise
            raise _error(f"cannot read the file: {error.strerror}") from None
        except UnicodeDecodeError:
            raise _error("the file is not UTF-8 text") from None

    def _how_to_write(self) -> str:
        file = shlex.quote(str(self.path))
        example = f"{command('run --example-config')} > {file}"
        return (
            f"there is no such file; to write it: {command('setup')} --config {file}, or {example}"
        )

    def values(self) -> dict[str, Any]:
        """Return the tables and keys, unchecked. Raises like `read`."""
        try:
            return tomllib.loads(self.read())
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise _error(f"invalid TOML: {error}") from None


def find_config(named: Path | None = None) -> ConfigFile | None:
    """Return the configuration file to read, or None.

    It is the one that the user has named, else `hermes.toml` in the current folder, else the one at
    the standard place.
    """
    if named is not None:
        return ConfigFile(named, named=True)
    for path in (Path(NAME), standard_path()):
        if os.path.lexists(path):
            return ConfigFile(path.absolute())
    return None


def _error(message: str) -> SettingsError:
    return SettingsError([Problem(0, "", message)])
