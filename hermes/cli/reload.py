"""`hermes reload`: let a running bot read its configuration again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hermes.run.configuration import Configuration, add_file_options
from hermes.run.reload import request_reload
from hermes.settings import Problem, SettingsError

DESCRIPTION = """\
Let a running bot read its configuration again, and print what has changed and what needs a
restart. Without a restart can change: agents, prices, budgets, who may use the bot, and the log
level.
"""


def main(arguments: Sequence[str]) -> int:
    """Ask the bot, and print its answer; returns the exit code."""
    parser = argparse.ArgumentParser(prog="hermes reload", description=DESCRIPTION)
    add_file_options(parser)
    configuration = Configuration.of(parser.parse_args(arguments))
    try:
        path = configuration.database()  # the bot judges the rest, in its own environment
    except SettingsError as error:
        return configuration.print_problems(error.problems)
    except OSError as error:
        return configuration.print_problems([Problem(0, "", f"cannot be read: {error.strerror}")])
    text, code = request_reload(path)
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    return code
