"""Several agents in one configuration: what each is, and which one answers."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hermes.messages import Source
from hermes.run.model_agents import named_endpoint
from hermes.settings import SettingsError, load
from hermes.settings.agents import agent_for, agent_tables, find_agent

TEXT = dedent("""\
    [agent]
    kind = 'openai'
    model = 'big'
    key = 'env:KEY'
    system = 'Be kind.'
    headers = { A = 'b' }
    tools = ['m:f']

    [agents.coder]
    model = 'code'
    tools = []
    platforms = ['rpc', 'telegram']

    [agents.local]
    base_url = 'http://127.0.0.1:1/v1'
    model = 'small'
    chats = ['telegram/-5']

    [agents.claude]
    kind = 'anthropic'
    model = 'big'
    key = 'env:OTHER'

    [telegram]
    token = 'env:T'
    open = true
""")


def problems(text):
    with pytest.raises(SettingsError) as refused:
        load(TEXT + text)
    return [(each.key, each.message) for each in refused.value.problems]


def test_what_is_not_set_is_as_in_the_default_agent():
    tables = agent_tables(load(TEXT))
    assert list(tables) == ["default", "coder", "local", "claude"]
    coder = tables["coder"]
    assert (coder.kind, coder.model, coder.key) == ("openai", "code", "env:KEY")
    assert (coder.system, coder.headers, coder.tools) == ("Be kind.", {"A": "b"}, [])


@pytest.mark.parametrize(("name", "key"), [("local", None), ("claude", "env:OTHER")])
def test_another_endpoint_does_not_get_the_key_and_headers_of_the_default_one(name, key):
    table = agent_tables(load(TEXT))[name]
    assert (table.key, table.headers, table.system) == (key, {}, "Be kind.")
    assert table.tools == ["m:f"]


@pytest.mark.parametrize(
    ("source", "chosen", "name"),
    [
        (Source("console"), None, "default"),
        (Source("rpc"), None, "coder"),
        (Source("telegram", chat_id="7"), None, "coder"),
        (Source("telegram", chat_id="-5"), None, "local"),
        (Source("rpc", chat_id="-5"), None, "coder"),
        (Source("telegram", chat_id="-5"), "claude", "claude"),
        (Source("telegram", chat_id="-5"), "default", "default"),
        (Source("telegram", chat_id="-5"), "removed", "local"),
    ],
)
def test_the_conversation_chooses_then_the_chat_then_the_platform(source, chosen, name):
    assert agent_for(load(TEXT), source, chosen) == name


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("coder", "coder"), ("Coder", "coder"), ("default", "default"), ("small", "local"),
     ("big", None), ("nothing", None)],
)  # fmt: skip
def test_a_user_names_an_agent_or_a_model(wanted, name):
    assert find_agent(load(TEXT), wanted) == name


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[agents.default]\nmodel = 'x'", "agents.default", "is the name of the agent in [agent]"),
        ("[agents.x]\nkind = 'offline'", "agents.x.kind", "expected one of 'openai', 'anthropic'"),
        ("[agents.x]\nkind = 'anthropic'", "agents.x.key", "needs a key"),
        ("[agents.x]\nprices = {}", "agents.x.prices", "unknown key"),
        ("[agents.x]\nbase_url = 'x'", "agents.x.base_url", "expected a URL"),
        ("[agents.x]\nplatforms = ['rpc']", "agents.x.platforms[0]", "coder answers there already"),
        ("[agents.x]\nplatforms = ['irc']", "agents.x.platforms[0]", "one of console, rpc, teleg"),
        ("[agents.x]\nchats = ['telegram']", "agents.x.chats[0]", "as in 'telegram/-10"),
        ("[agents.x]\nchats = ['telegram/-5']", "agents.x.chats[0]", "local answers there alread"),
        ("[agent.budgets]\nday = 1.0\n[agent.prices.big]\ninput = 1.0\n"
         "[agent.prices.small]\ninput = 1.0", "agents.coder.model", "cannot be enforced"),
    ],
)  # fmt: skip
def test_agents_that_cannot_work_are_refused(text, key, words):
    [(found, message)] = problems(text)
    assert found == key
    assert words in message


def test_named_agents_need_a_default_one_with_a_model():
    with pytest.raises(SettingsError, match=r"agents: has no effect without a model"):
        load("[agents.x]\nkind = 'openai'\nmodel = 'm'")


def test_what_a_model_takes_is_not_taken_over_by_another_endpoint():
    text = TEXT.replace("model = 'big'\n", "model = 'big'\nattachments = ['image', 'audio']\n", 1)
    tables = agent_tables(load(text))
    taken = {name: table.attachments for name, table in tables.items()}
    both = ["image", "audio"]
    assert taken == {"default": both, "coder": both, "local": None, "claude": None}


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ("['video']", "expected one of 'image', 'file', 'audio', 'url'"),
        ("['image', 'audio']", "kind = 'anthropic' takes no audio; remove 'audio'"),
    ],
)
def test_what_a_model_takes_is_checked(kinds, message):
    text = (
        f"\n[agents.deep]\nkind = 'anthropic'\nmodel = 'm'\nkey = 'env:K'\nattachments = {kinds}\n"
    )
    [(key, found)] = problems(text)
    assert key.startswith("agents.deep.attachments")
    assert message in found


def test_an_endpoint_takes_what_its_table_says():
    settings = load("[agent]\nkind = 'openai'\nmodel = 'm'\nattachments = ['audio']\n")
    assert named_endpoint(settings, "default", settings.agent).attachments == ("audio",)
    settings = load("[agent]\nkind = 'openai'\nmodel = 'm'\n")
    assert named_endpoint(settings, "default", settings.agent).attachments is None
