"""A configuration file is loaded, or every problem in it is reported with its line."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, strategies as st

from hermes.config import AttachmentLimits, Config
from hermes.settings import Problem, Settings, SettingsError, load

ROOT = Path(__file__).parents[3]


def problems(text, check=None):
    with pytest.raises(SettingsError) as refused:
        load(text, check=check)
    return [(problem.line, problem.key) for problem in refused.value.problems]


def test_an_empty_file_has_the_defaults():
    assert load("") == Settings()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("data = 3", [(1, "data")]),
        ("\n[agnt]\nkind = 1", [(2, "agnt")]),
        ("[agent]\nkind = 'opanai'", [(2, "agent.kind")]),
        ("[agent]\n\nkind = 'openai'\nmodel = ''", [(4, "agent.model")]),
        ("[agent]\nkind = 'openai'", [(1, "agent.model")]),
        ("[agent]\nkind = 'anthropic'\nmodel = 'm'", [(1, "agent.key")]),
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
        ("[runtime]\n[runtime.when_busy_by_platform]\ntelgram = 'steer'",
         [(3, "runtime.when_busy_by_platform.telgram")]),
        ("[runtime]\nwhen_busy_by_platform = { telegram = 'steer' }",
         [(2, "runtime.when_busy_by_platform.telegram")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nprices.n.input = 1.0\n[agent.budgets]\nday = 1.0",
         [(3, "agent.model")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nbase_url = 'https://a.b'\nbudgets.day = 1.0",
         [(3, "agent.model")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nprices.m.input = 1.0\nbudgets.day = 1.0\n"
         "[titles]\nmodel = 't'\n[compression]\nmodel = 'c'",
         [(7, "titles.model"), (9, "compression.model")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nbudgets.day = 1.0\nprices.m.cache_read = 1.0",
         [(4, "agent.budgets")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\n[compression]\nwindow = 8000",
         [(4, "compression")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nbase_url = '127.0.0.1:80'\n[mcp.a]\nurl = 'u'\n"
         "[telegram]\ntoken = 'env:T'\nusers = [1]\nbase_url = 'localhost'",
         [(4, "agent.base_url"), (6, "mcp.a.url"), (10, "telegram.base_url")]),
        ("[runtime]\nwhen_busy_by_platform = {\"rpc\" = 'quick'}",
         [(2, "runtime.when_busy_by_platform.rpc")]),
        ("[telegram]\nusers = [1]", [(1, "telegram.token")]),
        ("[transcriber]\nkey = 'sk-1'", [(1, "transcriber.base_url"), (1, "transcriber.model"),
                                         (2, "transcriber.key")]),
        ("[transcriber]\nbase_url = 'localhost'\nmodel = 'm'", [(2, "transcriber.base_url")]),
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
        ("[metrics]", [(1, "metrics.file")]),
        ('data = "a\\u0000b"', [(1, "data")]),
        ("[metrics]\nfile = '/'", [(2, "metrics.file")]),
        ("[telegram]\ntoken = 'env:T'\nopen = true\nbase_url = 'http://[::1'",
         [(4, "telegram.base_url")]),
        ("[telegram]\ntoken = 'env:T'\nopen = true\nbase_url = 'api.example.org'",
         [(4, "telegram.base_url")]),
        ("[agent]\nkind='openai'\nmodel='m'\nbase_url='http://a:x/v1'\n[mcp.b]\nurl='ftp://b'",
         [(4, "agent.base_url"), (6, "mcp.b.url")]),
        ("[runtime]\nmax_queued = 0\nturn_timeout = -1.0", [(2, "runtime.max_queued"),
         (3, "runtime.turn_timeout")]),
        ("[runtime]\nexpiry = {}\ncompression = {}", [(2, "runtime.expiry"),
         (3, "runtime.compression")]),
        ("[expiry]\nmode = 'idle'\nidle_minutes = 0", [(3, "expiry.idle_minutes")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\n[compression]\ncooldowns = [1, -1]",
         [(5, "compression.cooldowns")]),
        ("[attachments]\nmax_pixels = 0\nsize = 3\ntypes = [1]", [(2, "attachments.max_pixels"),
         (3, "attachments.size"), (4, "attachments.types")]),
        ("[runtime]\nattachments = {}", [(2, "runtime.attachments")]),
        ("[rates]\nburst = 0\nper_minute = 'x'", [(2, "rates.burst"), (3, "rates.per_minute")]),
    ],
)  # fmt: skip
def test_problems_are_reported_with_their_lines(text, found):
    assert problems(text) == found


@pytest.mark.parametrize("page", ["running", "telegram"])
def test_the_configurations_in_the_docs_load(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    [shown] = re.findall(r"^ *```toml\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    assert load(dedent(shown)) != Settings()


@pytest.mark.parametrize(
    "text",
    [
        "[expiry_by.console]\nmode = 'daily'\n[expiry_by.'rpc/dm']\nmode = 'idle'",
        "[runtime]\nwhen_busy_by_platform = { console = 'steer', rpc = 'reject' }",
        "[agent]\nkind = 'openai'\nmodel = 'm'\nprices.m.input = 1.0\nbudgets.day = 1.0",
        "[agent]\nkind = 'openai'\nmodel = 'm'\nprices.m = { output = 1.0 }\nprices.t = {}\n"
        "budgets.day = 1.0\n[titles]\nmodel = 't'",
        "[agent]\nkind = 'openai'\nmodel = 'm'\n[compression]\nwindow = 8001",
        "[texts]\nstopped = 'Halt.'\nresumed = 'Zurück in {name}.'",
    ],
)
def test_keys_that_have_an_effect_are_accepted(text):
    load(text)


def test_a_similar_key_is_suggested():
    with pytest.raises(SettingsError, match=r"line 2: agent\.modle: .* did you mean model\?"):
        load("[agent]\nmodle = 'm'")


def test_a_syntax_error_is_reported_with_its_line():
    with pytest.raises(SettingsError, match=r"^line 2: invalid TOML: "):
        load("[agent]\nkind = offline")
    with pytest.raises(SettingsError):
        load("a = " + "[" * 100_000)


@pytest.mark.parametrize("key", ["sk-1234567890abcdef", "env:", "env:a b", "file:", ""])
def test_a_literal_key_is_refused_and_not_repeated(key):
    with pytest.raises(SettingsError, match=r"line 4: agent\.key: ") as refused:
        load(f"[agent]\nkind = 'openai'\nmodel = 'm'\nkey = '{key}'")
    assert not key or key not in str(refused.value).replace("env:NAME", "").replace("file:PATH", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[runtime]\nmax_queued = 0", "line 2: runtime.max_queued: expected an integer >= 1"),
        ("[runtime]\nmax_queued = 'x'",
         "line 2: runtime.max_queued: expected an integer, got a string"),
        ("[compression]\nshare = 1.0", "line 2: compression.share: expected a number > 0 and < 1"),
        ("data = ''", "line 1: data: expected a string that is not empty"),
        ("data = 3", "line 1: data: expected a string, got an integer"),
        ("agent = 3", "line 1: agent: expected a table, got an integer"),
        ("[titles]\nenabled = 1", "line 2: titles.enabled: expected true or false, got an integer"),
        ("[agent]\nkind = 'opanai'",
         "line 2: agent.kind: expected one of 'offline', 'openai', 'anthropic'; did you mean "
         "openai?"),
        ("[runtime]\nwhen_busy = 'wait'",
         "line 2: runtime.when_busy: expected one of 'queue', 'interrupt', 'steer', 'reject'"),
        ("[runtime]\nwhen_busy_by_platform = { telgram = 'steer' }",
         "line 2: runtime.when_busy_by_platform.telgram: expected one of console, rpc, telegram, "
         "http, web; did you mean telegram?"),
        ("[http]\nhost = '0.0.0.0'",
         "line 1: http: 0.0.0.0 can be reached from other machines; if that is intended, set "
         "public = true in [http]"),
        ("[http]\nport = 70000", "line 2: http.port: expected an integer >= 0 and <= 65535"),
        ("[http]\nprot = 8000", "line 2: http.prot: unknown key; did you mean port?"),
        ("[runtime]\nwhen_busy_by_platform = { http = 'steer' }",
         "line 2: runtime.when_busy_by_platform.http: has no effect without [http]"),
        ("[runtime]\ncompression = { window = 8000 }",
         "line 2: runtime.compression: unknown key; it is a separate table, [compression]"),
        ("[telegram]\nusers = [1]",
         "line 1: telegram.token: missing; add it, as in token = 'env:TOKEN'"),
        ("[telegram]\ntoken = 3\nusers = [1]",
         "line 2: telegram.token: expected a string: env:NAME or file:PATH"),
        ("[agnt]", "line 1: agnt: unknown key; did you mean agent?"),
        ("[log]\nfrom = 'json'", "line 2: log.from: unknown key; did you mean form?"),
        ("[log]\ncolour = true", "line 2: log.colour: unknown key; the keys here are form, level"),
        ("[agent]\nkind = 3",
         "line 2: agent.kind: expected one of 'offline', 'openai', 'anthropic'"),
        ("[runtime]\nmax_queued = 1.5",
         "line 2: runtime.max_queued: expected an integer, got a number"),
        ("[expiry]\nat_hour = 24", "line 2: expiry.at_hour: expected an integer >= 0 and <= 23"),
        ("[texts]\nstoped = 'Halt.'", "line 2: texts.stoped: unknown key; did you mean stopped?"),
        ("[texts]\nstopped = 3", "line 2: texts.stopped: expected a string, got an integer"),
        ("[texts]\nstopped = 'Halt.'\nresumed = 'In {title}.'",
         "line 3: texts.resumed: unknown placeholder {title}; it may use {name}"),
    ],
)  # fmt: skip
def test_a_problem_is_one_clear_sentence(text, message):
    with pytest.raises(SettingsError) as refused:
        load(text)
    assert str(refused.value).splitlines()[0] == message


def test_the_tables_of_the_file_become_the_config_of_the_runtime():
    settings = load(
        "[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "[runtime]\nwhen_busy = 'steer'\nmax_attempts = 5\nturn_timeout = 60\n"
        "[compression]\nwindow = 9000\nmodel = 'small'\n"
        "[expiry]\nmode = 'idle'\nidle_minutes = 5\n"
        "[expiry_by.console]\nmode = 'daily'\n"
        "[attachments]\nmessage_files = 3\ntypes = ['image/*']\n"
    )
    config = settings.config()
    assert (config.when_busy, config.max_attempts, config.turn_timeout) == ("steer", 5, 60.0)
    assert config.compression.window == 9000
    assert config.expiry.idle_minutes == 5
    assert config.expiry_of("console", "dm").mode == "daily"
    assert config.attachments == AttachmentLimits(message_files=3, types=("image/*",))
    assert load("").config() == Config(compression=Settings().compression)


def test_overrides_replace_the_values_of_the_file():
    text = "data = 'a'\n[agent]\nkind = 'openai'\nmodel = 'm'\nsystem = 'Be kind.'"
    settings = load(text, {"data": "b", "agent": {"model": "n"}})
    agent = settings.agent
    assert (settings.data, agent.model, agent.system) == ("b", "n", "Be kind.")


def test_all_problems_are_reported_at_once():
    """Wrong values hide neither broken rules nor what does not exist, also in the same table."""
    text = dedent("""\
        [agent]
        kind = 'openai'
        model = 'm'
        base_url = 'not a url'
        key = 'env:NOPE'
        max_tokens = 0
        tools = ['nomodule:f', 3, 4]
        wrong = 1
        budgets.day = 1.0
        [compression]
        window = 1
        [expiry]
        mode = 'idle'
        at_hour = 4
        [metrics]
        file = '/'
        [telegram]
        token = 'a secret'
        base_url = 'localhost'
        [hooks]
        nothing = []
        [agents.coder]
        kind = 'anthropic'
        max_tokens = 'many'
        platforms = [3, 'nowhere']
        [mcp.a]
        url = 'u'
        approval = 3
    """)

    def check(settings):
        yield Problem(0, "agent.key", "the environment variable NOPE is not set")
        yield Problem(0, "agent.tools[0]", "there is no module nomodule")
        assert len(settings.agent.tools) == 3
        yield Problem(0, "agent.tools[1]", "a consequence of the wrong value")
        yield Problem(0, "telegram.token", "a consequence of the wrong value")

    assert problems(text, check) == [
        (3, "agent.model"),
        (4, "agent.base_url"),
        (5, "agent.key"),
        (6, "agent.max_tokens"),
        (7, "agent.tools[0]"),
        (7, "agent.tools[1]"),
        (7, "agent.tools[2]"),
        (8, "agent.wrong"),
        (11, "compression.window"),
        (14, "expiry.at_hour"),
        (16, "metrics.file"),
        (17, "telegram"),
        (18, "telegram.token"),
        (19, "telegram.base_url"),
        (21, "hooks.nothing"),
        (22, "agents.coder.key"),
        (24, "agents.coder.max_tokens"),
        (25, "agents.coder.platforms[0]"),
        (25, "agents.coder.platforms[1]"),
        (27, "mcp.a.url"),
        (28, "mcp.a.approval"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[agent]\nkind = 'opanai'\nmodel = 'm'\n[titles]\nmodel = 'n'\n[mcp.a]\nurl = 'http://u'",
         [(2, "agent.kind")]),
        ("[agent]\nkind = 'antropic'\n[agents.coder]\nsystem = 'Be kind.'", [(2, "agent.kind")]),
        ("[agent]\nkind = 'openai'\nmodle = 'm'\n[agents.coder]\nsystem = 's'",
         [(3, "agent.modle")]),
        ("[agnt]\nkind = 'openai'\nmodel = 'm'\n[titles]\nmodel = 'n'", [(1, "agnt")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nprices = 3\nbudgets.day = 1.0",
         [(4, "agent.prices")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\nprices.m.input = 'x'\nbudgets.day = 1.0",
         [(4, "agent.prices.m.input")]),
        ("[agent]\nkind = 'anthropic'\nmodel = 'm'\nkey = 'sk-1'", [(4, "agent.key")]),
        ("[telegram]\ntoken = 3\nusers = [1]\n[expiry_by.telegram]\nmode = 'daily'",
         [(2, "telegram.token")]),
        ("[telegrm]\ntoken = 'env:T'\n[expiry_by.telegram]\nmode = 'daily'", [(1, "telegrm")]),
        ("[telegram]\ntoken = 'env:T'\nusers = ['a']", [(3, "telegram.users[0]")]),
        ("[expiry]\nmode = 'ilde'\nidle_minutes = 5", [(2, "expiry.mode")]),
        ("[agent]\nkind = 'openai'\nmodel = 'm'\n[mcp.a]\ncommand = 'serve'",
         [(5, "mcp.a.command")]),
    ],
)  # fmt: skip
def test_a_wrong_value_has_no_consequences_elsewhere(text, found):
    assert problems(text) == found


def test_further_checks_run_too():
    def check(settings):
        yield Problem(0, "hooks.on_session_reset", "cannot be imported")
        yield Problem(0, "agent.key", "not set")
        yield Problem(0, "mcp.a.keys.B", "not set")

    with pytest.raises(SettingsError) as refused:
        load("[hooks]\non_session_reset = ['a:b']\n[log]\nform = 'x'\n[agent]\n", check=check)
    assert [(each.line, each.key) for each in refused.value.problems] == [
        (0, "mcp.a.keys.B"),
        (2, "hooks.on_session_reset"),
        (4, "log.form"),
        (5, "agent.key"),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda below: (
            st.lists(below, max_size=2)
            | st.dictionaries(
                st.sampled_from(["kind", "model", "mode", "token", "users", "url", "keys", "form"]),
                below,
                max_size=3,
            )
        ),
        max_leaves=6,
    ).map(lambda value: value if isinstance(value, dict) else {"kind": value}),
    st.sampled_from(["agent", "telegram", "mcp", "expiry_by", "log", "agents", "metrics", "data"]),
)
def test_any_values_are_accepted_or_reported(values, table):
    with suppress(SettingsError):
        load("", {table: values})
