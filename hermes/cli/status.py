"""`hermes status`: print the status of a running bot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hermes.run.configuration import Configuration, add_file_options
from hermes.run.status import print_status, status_of
from hermes.settings import Problem, SettingsError

EPILOG = """\
exit codes:
  0    the bot is running
  1    the bot is not running, or hangs
  2    invalid usage or configuration
  3    the database cannot be read
  74   the output cannot be written
"""


def main(arguments: Sequence[str]) -> int:
    """Print the status; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="hermes status",
        description="Print the status of a running bot.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args(arguments)
    configuration = Configuration.of(options)
    try:
        found = status_of(configuration)
    except SettingsError as error:
        return configuration.print_problems(error.problems)
    except OSError as error:
        return configuration.print_problems([Problem(0, "", f"cannot be read: {error.strerror}")])
    return print_status(found, json=options.json)
