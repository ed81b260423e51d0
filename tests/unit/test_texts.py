"""`Texts`: the table of sentences for users, and which replacements it accepts."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from hermes.actors.commands import ALIASES, COMMANDS
from hermes.settings.example import field_docs
from hermes.texts import ENGLISH, Texts, help_line
from hermes.texts.checks import problems, require_usable

HERMES = Path(__file__).parents[2] / "hermes"
DEFAULTS = msgspec.structs.asdict(ENGLISH)
HELP = {f"help_{name}" for name in COMMANDS}


def test_every_sentence_is_documented_and_used():
    code = "\n".join(
        path.read_text() for path in HERMES.rglob("*.py") if path.parent != HERMES / "texts"
    )
    used = set(re.findall(r"texts(?:\(state\)|_of\([\w.]+\))?\.(\w+)", code))
    assert set(DEFAULTS) == field_docs(Texts).keys()
    assert set(DEFAULTS) - HELP <= used


def test_every_command_has_its_line_of_help():
    assert {name for name in DEFAULTS if name.startswith("help_")} == HELP
    assert help_line(ENGLISH, "new") == ("/new [title]", "start a new conversation (also /reset)")
    german = Texts(help_new="/new [Titel]: ein neues Gespräch")
    assert help_line(german, "new") == ("/new [Titel]", "ein neues Gespräch")


def test_every_command_that_a_sentence_names_exists():
    named = re.findall(r"(?<![\w}])/([a-z]+)", " ".join(DEFAULTS.values()))
    assert set(named) <= {*COMMANDS, *ALIASES}


@pytest.mark.parametrize(
    ("texts", "name", "words"),
    [
        ({"resumed": "Wieder in {title}."}, "resumed", "unknown placeholder {title}"),
        ({"resumed": "Wieder in {title}."}, "resumed", "may use {name}"),
        ({"stopped": "Angehalten: {}"}, "stopped", "unknown placeholder {}; it may use none"),
        ({"resumed": "{name.upper}"}, "resumed", "unknown placeholder {name.upper}"),
        ({"resumed": "{name!r}"}, "resumed", "unknown placeholder {name!r}"),
        ({"gave_up": "{attempts:d}"}, "gave_up", "unknown placeholder {attempts:d}"),
        ({"resumed": "Wieder in {name"}, "resumed", "the braces do not match"),
        ({"resumed": "Wieder in }"}, "resumed", "the braces do not match"),
        ({"resumed": None}, "resumed", "expected a string, not None"),
        ({"unexpected": ""}, "unexpected", "the text is empty"),
        ({"resumed": " \n"}, "resumed", "the text is empty"),
        ({"help_new": "start a conversation"}, "help_new", "expected /new, a colon"),
        ({"help_new": "/neu: ein Gespräch"}, "help_new", "expected /new, a colon"),
    ],
)
def test_a_sentence_that_cannot_be_used_is_refused(texts, name, words):
    [(found, problem)] = problems(Texts(**texts))
    assert found == name
    assert words in problem
    with pytest.raises(ValueError, match=re.escape(f"texts.{name}: {problem}")):
        require_usable(Texts(**texts))


def test_placeholders_may_be_left_out_or_repeated_and_braces_written_twice():
    require_usable(Texts(failed="Es ging schief.", resumed="{name}, {name} {{hier}}"))
    assert Texts(resumed="{name} {{hier}}").resumed.format(name="x") == "x {hier}"


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match="stoped"):
        Texts(stoped="Angehalten.")
