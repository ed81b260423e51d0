"""Questions at a terminal. Each raises `EOFError` at the end of the input."""

from __future__ import annotations

import getpass
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence


def say(text: str = "") -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_wrapped(text: str) -> None:
    """Print a paragraph, indented; at a terminal no word is broken."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(text) + 9
    wrapped = textwrap.wrap(text, width - 3, break_long_words=False, break_on_hyphens=False)
    say(textwrap.indent("\n".join(wrapped), "  "))


def ask(
    question: str, default: str = "", problem: Callable[[str], str | None] = lambda _: None
) -> str:
    """Return the answer to a question, or the default for an empty one.

    `problem` says what is wrong with an answer; the question is then asked again.
    """
    shown = f" [{default}]" if default else ""
    while True:
        answer = input(f"{question}{shown}: ").strip() or default
        wrong = "type some text" if not answer.isprintable() or not answer else problem(answer)
        if wrong is None:
            return answer
        say(f"  Please {wrong}.")


def ask_secret(question: str) -> str:
    """Return the answer to a question; at a terminal it is not shown. It may be empty."""
    if sys.stdin.isatty():
        return getpass.getpass(f"{question}: ").strip()
    return input(f"{question}: ").strip()


def choose(question: str, options: Sequence[str], default: int) -> int:
    """Return the index of the option that was chosen by its number."""
    for number, option in enumerate(options, start=1):
        say(f"  {number}. {option}")
    numbers = [str(number) for number in range(1, len(options) + 1)]

    def problem(answer: str) -> str | None:
        return None if answer in numbers else f"type a number from 1 to {len(options)}"

    return int(ask(question, str(default + 1), problem)) - 1


def confirm(question: str, *, default: bool) -> bool:
    """Return whether the answer is yes."""
    words = {"y": True, "yes": True, "n": False, "no": False}

    def problem(answer: str) -> str | None:
        return None if answer.lower() in words else "answer y or n"

    return words[ask(f"{question} (y/n)", "y" if default else "n", problem).lower()]
