"""The history file: private, bounded, and compatible with the format of earlier versions."""

from __future__ import annotations

import stat

import pytest
from hypothesis import example, given, strategies as st

from hermes.adapters.console.history import ConsoleHistory, is_recorded

# The lines as earlier versions wrote them: one JSON string each.
OLD = b'"one"\n"two\\nlines"\n"+ \\u00e9\\ud800"\n{"a": 1}\n\xff\xfe\n"cut'


def load(path, **options):
    """The entries, oldest first."""
    return list(ConsoleHistory(path, **options).load_history_strings())[::-1]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_entries_are_kept_in_a_file_for_their_owner_only(tmp_path):
    path = tmp_path / "history"
    path.touch(mode=0o644)
    texts = ["one", "two\nlines", "+ three", '"four"', "# five", "\rsix"]
    for text in texts:
        ConsoleHistory(path).append_string(text)
    assert load(path) == texts
    assert mode(path) == 0o600


def test_a_new_file_is_private(tmp_path):
    ConsoleHistory(tmp_path / "history").append_string("one")
    assert mode(tmp_path / "history") == 0o600


@given(st.lists(st.text(st.characters()), max_size=5))
@example(["é\ud800"])
@example(['a\r"b"'])
def test_any_text_can_be_read_again(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("history") / "history"
    for text in texts:
        ConsoleHistory(path).append_string(text)
    assert load(path) == [text.encode(errors="replace").decode() for text in texts]


@pytest.mark.parametrize("text", ["", "  ", " secret", "x" * 10_001])
def test_some_lines_are_not_recorded(text):
    assert not is_recorded(text)
    assert is_recorded("one")


def test_the_format_of_earlier_versions_is_read_and_converted_once(tmp_path):
    path = tmp_path / "history"
    path.write_bytes(OLD)
    entries = ["one", "two\nlines", "+ é?"]
    assert load(path) == entries
    converted = path.read_bytes()
    assert b'"one"' not in converted
    assert mode(path) == 0o600
    assert load(path) == entries
    assert path.read_bytes() == converted


def test_entries_added_by_both_versions_are_all_read(tmp_path):
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n')
    ConsoleHistory(path).append_string('"two"')
    assert load(path) == ["one", '"two"']
    assert load(path) == ["one", '"two"']


def test_the_history_is_bounded(tmp_path):
    path = tmp_path / "history"
    for number in range(6):
        ConsoleHistory(path).append_string(str(number))
    assert load(path, max_entries=3) == ["3", "4", "5"]
    assert load(path) == ["0", "1", "2", "3", "4", "5"], "not rewritten yet"
    ConsoleHistory(path).append_string("6")
    assert load(path, max_entries=3) == ["4", "5", "6"]
    assert load(path) == ["4", "5", "6"]
    assert mode(path) == 0o600


@pytest.mark.parametrize("name", [".", "none/history"])
def test_a_file_that_cannot_be_used_is_logged(tmp_path, caplog, name):
    history = ConsoleHistory(tmp_path / name)
    history.append_string("text")
    assert "cannot write the console history" in caplog.text
    assert list(history.load_history_strings()) == []
