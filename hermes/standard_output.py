"""Commands whose standard output cannot be written: a full disk, a closed pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT = 1
INTERRUPTED = 130


class OutputFailed(OSError):
    """Standard output cannot be written; the message is a sentence for the user."""

    def __str__(self) -> str:
        reason = self.strerror or "unknown error"
        return f"Cannot write the output: {reason[:1].lower()}{reason[1:]}."


class _Output(io.FileIO):
    """Standard output, which remembers why it could not be written."""

    problem: OSError | None = None

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError as error:
            self.problem = error
            raise
        except OSError as error:
            self.problem = OutputFailed(error.errno, error.strerror)
            raise self.problem from None


def run_command(run: Callable[[], int]) -> int:
    """Run the command of this process; returns its exit code.

    If standard output cannot be written, one sentence on standard error says so, and the code is
    `os.EX_IOERR`, unless the command has reported it and returned a code of its own. A closed pipe
    is not reported: its reader wanted no more. Neither is Ctrl-C, for which the code is 130.
    """
    output = _replace_stdout()
    if output is None:
        return run()
    code, ended = 0, None
    try:
        code = _run(run, output)
    except SystemExit as error:  # of argparse, which ignores that its help cannot be written
        ended = error
    flushed = _flush()
    if output.problem is None:
        if ended is not None:
            raise ended
        return code
    if isinstance(output.problem, BrokenPipeError) or (code and flushed):
        return code
    with suppress(OSError):
        sys.stderr.write(f"{output.problem}\n")
    return os.EX_IOERR


def _run(run: Callable[[], int], output: _Output) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error is not output.problem:
            raise
        return 0


def _replace_stdout() -> _Output | None:
    """Let `sys.stdout` remember its problem; None if it is not the output of the process."""
    given = sys.__stdout__
    if sys.stdout is not given or not isinstance(given, io.TextIOWrapper | None):
        return None
    if given is None:
        _keep_closed()
        sys.stdout = io.TextIOWrapper(output := _Output(STDOUT, "w", closefd=False))
        return output
    given.flush()
    output = _Output(STDOUT, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        output if given.write_through else io.BufferedWriter(output),
        encoding=given.encoding,
        errors=given.errors,
        newline="\n",
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )
    return output


def _keep_closed() -> None:
    """Occupy the descriptor of a closed standard output, which another file would get otherwise."""
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) < STDOUT:
        pass
    if descriptor > STDOUT:
        os.close(descriptor)


def _flush() -> bool:
    """Write what is in the buffer; if that fails, discard it, and return False."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        return False
    return True
