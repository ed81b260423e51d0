"""Settings: what a TOML text says, and on which line it is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, strategies as st

from hermes.settings import EXAMPLE, BadSettings, Settings, read
from hermes.settings.toml_lines import lines_of


def problems(text):
    with pytest.raises(BadSettings) as refused:
        read(text)
    return [(each.line, each.key) for each in refused.value.problems]


def everything():
    """The example with all its comments taken away that hide a key."""
    text = re.sub(r"^# (?=\[|[a-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE)
    text = text.replace('kind = "offline"', 'kind = "openai"')
    return text.replace('mode = "none"', 'mode = "both"').replace('mode = "idle"', 'mode = "both"')


def test_nothing_said_is_the_default():
    assert read("") == Settings()


def test_the_example_is_the_default_with_the_offline_agent():
    assert read(EXAMPLE).agent.kind == "offline"
    settings = read(EXAMPLE.replace('kind = "offline"', ""))
    assert settings == Settings()


def test_the_example_has_every_key():
    told = tomllib.loads(everything())
    read(everything())
    missing = []

    def look(table, said, path):
        for name in table.__struct_fields__:
            value = said.get(name)
            if value is None:
                missing.append(f"{path}{name}")
            kind = getattr(getattr(read(everything()), name, None), "__class__", None)
            if isinstance(value, dict) and hasattr(kind, "__struct_fields__") and not path:
                look(kind, value, f"{name}.")

    look(Settings, told, "")
    assert missing == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("data = 3", [(1, "data")]),
        ("\n[agnt]\nkind = 1", [(2, "agnt")]),
        ("[agent]\nkind = 'opanai'", [(2, "agent.kind")]),
        ("[agent]\n\nkind = 'openai'\nmodel = ''", [(4, "agent.model")]),
        ("[agent]\nkind = 'openai'", [(1, "agent")]),
        ("[agent]\nkind = 'anthropic'\nmodel = 'm'", [(1, "agent")]),
        ("[agent]\nmodel = 'm'", [(2, "agent.model")]),
        ("agent.kind = 'openai'\nagent.model = 'm'\nagent.budgets.day = -1",
         [(3, "agent.budgets.day")]),
        ("[compression]\nwindow = 5", [(1, "compression")]),
        (
            "[agent]\nkind = 'openai'\nmodel = 'm'\n[titles]\nenabled = false\nmodel = 'n'",
            [(6, "titles.model")],
        ),
        ("[expiry]\nat_hour = 24", [(2, "expiry.at_hour")]),
        ("[expiry]\nmode = 'idle'\nat_hour = 4", [(3, "expiry.at_hour")]),
        ("[expiry_by.dm]\nidle_minutes = 4", [(2, "expiry_by.dm.idle_minutes")]),
        ("[expiry_by.cli]\nmode = 'daily'", [(1, "expiry_by.cli")]),
        ("[expiry_by.'console/public']\nmode = 'daily'", [(1, "expiry_by.console/public")]),
        ("[expiry_by.'telegram/group']\nmode = 'daily'", [(1, "expiry_by.telegram/group")]),
        ("[runtime]\n[runtime.busy_on]\ntelgram = 'steer'", [(3, "runtime.busy_on.telgram")]),
        ("[runtime]\nbusy_on = { telegram = 'steer' }", [(2, "runtime.busy_on.telegram")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nprices.n.input = 1.0\n[agent.budgets]\nday = 1.0",
         [(5, "agent.budgets")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\n[compression]\nwindow = 8000",
         [(4, "compression")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nbase_url = '127.0.0.1:80'\n[mcp.a]\nurl = 'u'\n"
         "[telegram]\ntoken = 'env:T'\nusers = [1]\nbase_url = 'localhost'",
         [(4, "agent.base_url"), (6, "mcp.a.url"), (10, "telegram.base_url")]),
        ("[runtime]\nbusy_on = {\"rpc\" = 'quick'}", [(2, "runtime.busy_on.rpc")]),
        ("[telegram]\nusers = [1]", [(1, "telegram")]),
        ("[telegram]\ntoken = 'env:T'", [(1, "telegram")]),
        ("[telegram]\ntoken = 'env:T'\nusers = [\n 1,\n 'ann', # not a number\n 'bob']",
         [(5, "telegram.users[1]"), (6, "telegram.users[2]")]),
        ("[telegram]\ntoken = 'env:T'\nopen = true\nchats = [1]", [(4, "telegram.chats")]),
        ("[agent]\nkind='openai'\nmodel='m'\n[mcp.a]\n[mcp.b]\nurl='http://u'\nenvironment={A='b'}",
         [(4, "mcp.a"), (7, "mcp.b.environment")]),
        ("[agent]\nkind='openai'\nmodel='m'\n[mcp.b]\nurl='http://u'\nkeys={A='env:B'}",
         [(6, "mcp.b.keys")]),
        ("[agent]\nkind='openai'\nmodel='m'\n[mcp.b]\ncommand=['b']\nkeys={A='sk-123'}",
         [(6, "mcp.b.keys.A")]),
        ("[hooks]\non_session_finalise = ['a:b']", [(2, "hooks.on_session_finalise")]),
        ("[metrics]", [(1, "metrics")]),
        ('data = "a\\u0000b"', [(1, "data")]),
        ("[metrics]\nfile = '/'", [(2, "metrics.file")]),
        ("[telegram]\ntoken = 'env:T'\nopen = true\nbase_url = 'http://[::1'",
         [(4, "telegram.base_url")]),
        ("[telegram]\ntoken = 'env:T'\nopen = true\nbase_url = 'api.example.org'",
         [(4, "telegram.base_url")]),
        ("[agent]\nkind='openai'\nmodel='m'\nbase_url='http://a:x/v1'\n[mcp.b]\nurl='ftp://b'",
         [(4, "agent.base_url"), (6, "mcp.b.url")]),
        ("[rates]\nburst = 0\nper_minute = 'x'", [(2, "rates.burst"), (3, "rates.per_minute")]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text, found):
    assert problems(text) == found


@pytest.mark.parametrize("page", ["running", "telegram"])
def test_what_the_pages_show_loads(page):
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    [shown] = re.findall(r"^ *```toml\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    assert read(dedent(shown)) != Settings()


@pytest.mark.parametrize(
    "text",
    [
        "[expiry_by.console]\nmode = 'daily'\n[expiry_by.'rpc/dm']\nmode = 'idle'",
        "[runtime]\nbusy_on = { console = 'steer', rpc = 'reject' }",
        "[agent]\nkind = 'openai'\nmodel = 'm'\nprices.m.input = 1.0\nbudgets.day = 1.0",
        # Such an endpoint may tell the cost of each call.
        "[agent]\nkind = 'openai'\nmodel = 'm'\nbase_url = 'https://a.b'\nbudgets.day = 1.0",
        "[agent]\nkind = 'openai'\nmodel = 'm'\n[compression]\nwindow = 8001",
    ],
)
def test_what_has_an_effect_is_taken(text):
    read(text)


def test_what_was_meant_is_guessed():
    with pytest.raises(BadSettings, match=r"line 2: agent\.modle: .* did you mean model\?"):
        read("[agent]\nmodle = 'm'")


def test_what_is_not_toml_is_told_with_its_line():
    with pytest.raises(BadSettings, match=r"^line 2: this is not TOML: "):
        read("[agent]\nkind = offline")
    with pytest.raises(BadSettings):
        read("a = " + "[" * 100_000)


@pytest.mark.parametrize("key", ["sk-1234567890abcdef", "env:", "env:a b", "file:", ""])
def test_a_key_itself_is_refused_and_not_repeated(key):
    with pytest.raises(BadSettings, match=r"line 4: agent\.key: ") as refused:
        read(f"[agent]\nkind = 'openai'\nmodel = 'm'\nkey = '{key}'")
    assert not key or key not in str(refused.value).replace("env:NAME", "").replace("file:PATH", "")


# Lines

NAMES = st.text(st.sampled_from("ab-_1."), min_size=1, max_size=3)
SCALARS = st.sampled_from(
    ["1", "1.5", "true", "'x'", '"y # [z] = {"', "1979-05-27T07:32:00Z", "'''a\n[b]\nc = 1'''",
     '"""\\"\n"" ]\n"""', "-inf", "''", '""""quoted""""', "[]", "{}", "[\n 1, # one\n [2],\n]",
     "[{a = 1}, {b = {c = 2}}]"]
)  # fmt: skip


def written(name):
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


@given(
    st.dictionaries(NAMES, SCALARS, max_size=4),
    st.dictionaries(NAMES, st.dictionaries(NAMES, SCALARS, max_size=4), max_size=4),
    st.lists(st.dictionaries(NAMES, SCALARS, max_size=2), max_size=3),
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
        add(f"{written(name)} = {value}", (name,))
    for table, pairs in tables.items():
        if table in top:
            continue
        add(f"[ {written(table)} ]", (table,))
        for name, value in pairs.items():
            add(f"  {written(name)}={value} # why", (table, name))
    for number, pairs in enumerate(elements):
        add("[[many]]", ("many", number))
        for name, value in pairs.items():
            add(f"{written(name)} = {value}", ("many", number, name))
    tomllib.loads(text)
    lines = lines_of(text)
    assert {path: lines.get(path) for path in expected} == expected


@given(st.dictionaries(NAMES, SCALARS, max_size=5))
def test_every_value_of_a_valid_text_has_a_line(pairs):
    text = "".join(f"{written(name)} = {value}\n" for name, value in pairs.items())
    lines = lines_of(text)

    def look(value, path):
        if path:
            assert path in lines
        inner = value.items() if isinstance(value, dict) else ()
        for name, each in enumerate(value) if isinstance(value, list) else inner:
            look(each, (*path, name))

    look(tomllib.loads(text), ())
