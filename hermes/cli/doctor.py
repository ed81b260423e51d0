"""`hermes doctor`: check everything that a bot needs; each line is ok, or says what to do."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from hermes.cli import checks
from hermes.cli.checks import Finding
from hermes.config import data_path
from hermes.run.configuration import Configuration, add_file_options
from hermes.run.local_files import local_path
from hermes.run.references import check_references
from hermes.sanitize import one_line
from hermes.settings import Settings, SettingsError

DESCRIPTION = """\
Check the installation, the configuration, the database, and everything that the configuration
names: the model (with one short call), MCP servers and platforms.
"""
EPILOG = """\
exit codes:
  0    everything is ok
  1    there are problems; each line says what to do
  2    invalid usage
  74   the output cannot be written
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="hermes doctor",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file_options(parser)
    parser.add_argument(
        "--offline", action="store_true", help="do not call the model, MCP servers or platforms"
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # the lines below say it
    failed = 0
    for finding in _findings(Configuration.of(options), offline=options.offline):
        failed += not finding.ok
        word = "ok     " if finding.ok else "PROBLEM"
        sys.stdout.write(f"{word}  {finding.topic:<14} {one_line(finding.text)}\n")
        sys.stdout.flush()
    return 1 if failed else 0


def _findings(configuration: Configuration, *, offline: bool) -> Iterator[Finding]:
    yield from checks.versions()
    yield checks.first_on_path()
    settings: Settings | None = None
    try:
        settings = configuration.load(check_references)
    except SettingsError as error:
        yield from checks.configuration(configuration, error.problems)
    except OSError as error:
        text = f"{configuration.name} cannot be read: {error.strerror}; try again later"
        yield Finding("configuration", text, ok=False)
    else:
        yield from checks.configuration(configuration, [])
    path: Path | str = data_path()
    with suppress(SettingsError, OSError):  # the problem is listed above
        path = configuration.database()
    yield checks.database(path)
    yield checks.disk(local_path(path))
    if settings is None:
        yield Finding("network", "not checked, because of the configuration")
    elif offline:
        yield Finding("network", "not checked, because of --offline")
    else:
        yield trio.run(checks.model, settings)
        yield from trio.run(checks.transcriber, settings)
        yield from trio.run(checks.mcp_servers, settings)
        yield from trio.run(checks.platforms, settings)
