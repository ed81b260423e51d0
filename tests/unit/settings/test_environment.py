"""Which model the environment chooses if the configuration names none."""

from __future__ import annotations

import pytest

from hermes.settings import load
from hermes.settings.environment import OPENROUTER_URL, chosen_variable

OPENAI = {"OPENAI_API_KEY": "sk-1"}
ENDPOINT = {"OPENAI_BASE_URL": "http://127.0.0.1:1"}
ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-2"}
OPENROUTER = {"OPENROUTER_API_KEY": "sk-3"}


@pytest.mark.parametrize(
    ("environment", "variable", "kind", "key"),
    [
        ({}, None, "offline", None),
        ({"OPENAI_API_KEY": ""}, None, "offline", None),
        ({**OPENROUTER, **ANTHROPIC, **OPENAI}, "OPENAI_API_KEY", "openai", None),
        ({**OPENROUTER, **ANTHROPIC, **ENDPOINT}, "OPENAI_BASE_URL", "openai", None),
        ({**OPENROUTER, **ANTHROPIC}, "ANTHROPIC_API_KEY", "anthropic", "env:ANTHROPIC_API_KEY"),
        (OPENROUTER, "OPENROUTER_API_KEY", "openai", "env:OPENROUTER_API_KEY"),
    ],
)
def test_the_first_variable_that_is_set_chooses_the_model(environment, variable, kind, key):
    assert chosen_variable({}, environment) == variable
    agent = load("", {}, environment).agent
    assert (agent.kind, agent.key) == (kind, key)
    assert (agent.base_url == OPENROUTER_URL) == (variable == "OPENROUTER_API_KEY")
    assert (agent.model is None) == (kind == "offline")


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ({**OPENAI, "OPENAI_MODEL": "a"}, "a"),
        ({**ANTHROPIC, "OPENAI_MODEL": "a", "ANTHROPIC_MODEL": "b"}, "b"),
        ({**OPENROUTER, "ANTHROPIC_MODEL": "b", "OPENROUTER_MODEL": "c"}, "c"),
    ],
)
def test_each_provider_has_a_variable_for_the_model(environment, model):
    assert load("", {}, environment).agent.model == model
    assert load("[agent]\nmodel = 'mine'", {}, environment).agent.model == "mine"


@pytest.mark.parametrize("environment", [ANTHROPIC, OPENROUTER])
def test_a_key_is_never_sent_to_a_url_of_the_file(environment):
    text = "[agent]\nmodel = 'm'\nbase_url = 'http://127.0.0.1:1'\n"
    agent = load(text, {}, environment).agent
    assert (agent.kind, agent.key) == ("openai", None)


def test_a_configured_kind_is_never_replaced():
    agent = load("[agent]\nkind = 'offline'", {}, {**OPENAI, **ANTHROPIC}).agent
    assert (agent.kind, agent.model) == ("offline", None)
    agent = load("[agent]\nkind = 'anthropic'\nmodel = 'm'", {}, {**OPENAI, **ANTHROPIC}).agent
    assert (agent.kind, agent.key) == ("anthropic", "env:ANTHROPIC_API_KEY")
