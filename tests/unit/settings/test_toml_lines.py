"""`key_lines` finds the line of every key of a valid TOML text."""

from __future__ import annotations

import re
import tomllib

from hypothesis import given, strategies as st

from hermes.settings.toml_lines import key_lines

NAMES = st.text(st.sampled_from("ab-_1."), min_size=1, max_size=3)
VALUES = st.sampled_from(
    ["1", "1.5", "true", "'x'", '"y # [z] = {"', "1979-05-27T07:32:00Z", "'''a\n[b]\nc = 1'''",
     '"""\\"\n"" ]\n"""', "-inf", "''", '""""quoted""""', "[]", "{}", "[\n 1, # one\n [2],\n]",
     "[{a = 1}, {b = {c = 2}}]"]
)  # fmt: skip


def key(name):
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4),
    st.lists(st.dictionaries(NAMES, VALUES, max_size=2), max_size=3),
    st.sampled_from(["", "\n", "# a comment = 'x'\n", "  \t\n\n"]),
)
def test_each_key_is_found_on_its_line(top, tables, elements, between):
    text, expected = "", {}

    def add(line, path):
        nonlocal text
        text += between
        expected[path] = text.count("\n") + 1
        text += line + "\n"

    for name, value in top.items():
        add(f"{key(name)} = {value}", (name,))
    for table, pairs in tables.items():
        if table in top:
            continue
        add(f"[ {key(table)} ]", (table,))
        for name, value in pairs.items():
            add(f"  {key(name)}={value} # why", (table, name))
    for index, pairs in enumerate(elements):
        add("[[many]]", ("many", index))
        for name, value in pairs.items():
            add(f"{key(name)} = {value}", ("many", index, name))
    tomllib.loads(text)
    lines = key_lines(text)
    assert {path: lines.get(path) for path in expected} == expected


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_every_value_of_a_valid_text_has_a_line(pairs):
    text = "".join(f"{key(name)} = {value}\n" for name, value in pairs.items())
    lines = key_lines(text)

    def check(value, path):
        if path:
            assert path in lines
        inner = value.items() if isinstance(value, dict) else ()
        for name, each in enumerate(value) if isinstance(value, list) else inner:
            check(each, (*path, name))

    check(tomllib.loads(text), ())
