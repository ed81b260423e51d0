"""The table of commands, and how a text is recognized as one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.actors.commands import (
    ALIASES,
    COMMANDS,
    ParsedCommand,
    interpret,
    parse,
    recognize,
    with_command,
)
from hermes.messages import Inbound

NAMES = st.sampled_from([*COMMANDS, *ALIASES])
SPACES = st.text(" \n\t", max_size=2)


def inbound(text, *, command=True, **fields):
    return Inbound("k", "e", text, command=command, **fields)


@given(NAMES, st.booleans(), st.sampled_from(["", "@my_bot"]), st.text(max_size=20), SPACES)
def test_a_known_command_is_recognized_in_any_case_with_its_argument(
    name, upper, mention, argument, space
):
    written = f"/{name.upper() if upper else name}{mention}"
    expected = ParsedCommand(ALIASES.get(name, name), argument.strip())
    assert parse(f"{written} {argument}{space}") == expected
    assert recognize(f"/{written} {argument}") == (f"{written} {argument}", False)
    assert parse(f" {written}") is None


@pytest.mark.parametrize(
    "text",
    ["", "/", "//stop", "/ stop", "stop", "hello /stop", "/unknown", "/stop!", "/stopnow", "/stop2",
     "/etc/passwd", "/stop/me", "/@bot"],
)  # fmt: skip
def test_other_texts_are_not_commands(text):
    assert parse(text) is None


@given(st.text(max_size=30))
def test_text_without_a_slash_is_never_a_command(text):
    assert text.strip().startswith("/") or parse(text) is None


@pytest.mark.parametrize("text", ["/stauts", "/größe", "/x y z", "/stauts@bot", "/a\nb"])
def test_any_word_of_letters_after_a_slash_is_a_command(text):
    assert recognize(text) == (text, True)
    assert recognize(f"/{text}") == (text, False)
    assert recognize(f" {text}") == (f" {text}", False)


@pytest.mark.parametrize("text", ["/etc/hosts", "/", "//", "///x", "/2", "/a_b", "/a.", "// note"])
def test_other_texts_with_a_slash_are_sent_as_they_are(text):
    assert recognize(text) == (text, False)


@pytest.mark.parametrize(
    ("text", "commands", "sent", "command"),
    [
        ("/stop", True, "/stop", True),
        ("/stop", False, "/stop", False),
        ("/stop", "all", "/stop", True),
        ("/stauts", True, "/stauts", False),
        ("/stauts", "all", "/stauts", True),
        ("//stop", True, "//stop", False),
        ("//stop", "all", "/stop", False),
        (" /stop", "all", " /stop", False),
    ],
)
def test_a_host_decides_what_is_a_command(text, commands, sent, command):
    found = with_command(inbound(text, command=False), commands)
    assert (found.text, found.command) == (sent, command)


def test_every_command_has_the_mode_of_the_table():
    for name, command in COMMANDS.items():
        assert interpret(inbound(f"/{name} argument"))[0] == command.mode
    for alias, name in ALIASES.items():
        assert interpret(inbound(f"/{alias}"))[0] == COMMANDS[name].mode


@pytest.mark.parametrize("text", ["/queue", "/steer \n", "/unknown", "/unknown text"])
def test_a_command_without_its_message_and_an_unknown_one_are_explained_at_once(text):
    assert interpret(inbound(text)) == ("now", inbound(text))


@pytest.mark.parametrize("name", ["queue", "steer"])
def test_queue_and_steer_carry_a_message(name):
    mode, found = interpret(inbound(f"/{name}  look at /this ", platform_message_id="m1"))
    assert mode == COMMANDS[name].mode
    assert found == inbound(
        "look at /this", command=False, when_busy=name, platform_message_id="m1"
    )


@given(NAMES.filter(lambda name: name not in {"queue", "steer"}), st.text(max_size=10))
def test_other_commands_carry_no_message(name, argument):
    command = inbound(f"/{name} {argument}")
    assert interpret(command)[1] is command


def test_commands_that_cost_or_permit_something_are_not_available_to_guests():
    for_guests = {name for name, each in COMMANDS.items() if each.role == "guest"}
    assert for_guests == {
        "new",
        "retry",
        "undo",
        "stop",
        "queue",
        "steer",
        "help",
        "whoami",
        "quit",
        "start",
    }
    for_operators = {name for name, each in COMMANDS.items() if each.role == "operator"}
    assert for_operators == {"pair", "unpair"}
