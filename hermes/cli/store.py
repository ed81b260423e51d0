"""`hermes store`: administer the database of the configuration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hermes.run.config_file import find_config
from hermes.run.configuration import configured_database
from hermes.settings import SettingsError
from hermes.store.__main__ import main as administer


def main(arguments: Sequence[str]) -> int:
    """Run one command of `hermes.store`; returns the exit code."""
    default = None
    if not any(word.startswith("--db") for word in arguments):
        try:
            default = configured_database()
        except (SettingsError, OSError) as error:
            file = find_config()
            where = "" if file is None else f"{file.path}: "
            sys.stderr.write(f"{where}{error}; use --db to name the database\n")
            return 2
    return administer(arguments, prog="hermes store", default=default)
