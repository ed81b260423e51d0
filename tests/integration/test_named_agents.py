"""Several agents in one bot: the model that answers is that of the chat, or the chosen one."""

from __future__ import annotations

from hermes import Source, open_runtime
from hermes.redaction import ValueRedactor
from hermes.run.agent_setup import open_agent_setup
from hermes.settings import load
from hermes.testing import open_model

TEXT = """
[agent]
kind = 'openai'
model = 'big'
base_url = '{url}'
key = 'env:HERMES_TEST_KEY'
prices = {{ big = {{ input = 1.0 }}, code = {{ input = 1.0 }} }}
budgets = {{ day = {budget} }}
[agents.coder]
model = 'code'
system = 'You write programs.'
platforms = ['rpc']
[titles]
enabled = false
"""


async def asked(runtime, model, platform, text="hello", key=None):
    reply = await runtime.ask(key or platform, text, source=Source(platform, user_id="u"))
    request = model.requests[-1].json
    return reply, request["model"], request["messages"][0]["content"]


async def test_the_agent_of_a_chat_answers_and_a_conversation_may_choose(path, monkeypatch):
    monkeypatch.setenv("HERMES_TEST_KEY", "sk-secret-of-the-test")
    async with open_model(lambda _: "yes") as model:
        settings = load(TEXT.format(url=model.openai_url, budget=100))
        async with (
            open_agent_setup(settings, ValueRedactor([]), "") as setup,
            open_runtime(path, build_agent=setup.build, agent_spec=setup.agent_spec) as runtime,
        ):
            assert (await asked(runtime, model, "console"))[1] == "big"
            assert (await asked(runtime, model, "rpc"))[1:] == ("code", "You write programs.")
            await runtime.conversation("rpc").configure(agent="default")
            assert (await asked(runtime, model, "rpc"))[1] == "big"
            await runtime.conversation("console").configure(agent="coder")
            assert (await asked(runtime, model, "console"))[1] == "code"
            await runtime.conversation("console").configure(agent="removed")
            assert (await asked(runtime, model, "console"))[1] == "big"
            assert model.requests[-1].headers["authorization"] == "Bearer sk-secret-of-the-test"


async def test_a_user_chooses_an_agent_with_a_command(path, monkeypatch):
    monkeypatch.setenv("HERMES_TEST_KEY", "sk-secret-of-the-test")
    async with open_model(lambda _: "yes") as model:
        settings = load(TEXT.format(url=model.openai_url, budget=100))
        async with (
            open_agent_setup(settings, ValueRedactor([]), "") as setup,
            open_runtime(
                path, build_agent=setup.build, agent_spec=setup.agent_spec, catalog=setup.catalog
            ) as runtime,
        ):
            for command, used in (("/model coder", "code"), ("/model big", "big")):
                assert (await asked(runtime, model, "console"))[1] != used
                await runtime.ask("console", command, source=Source("console", user_id="u"))
                assert (await asked(runtime, model, "console"))[1] == used
                assert (await runtime.conversation("console").status()).model == used


async def test_other_settings_are_used_from_the_next_turn_on(path, monkeypatch):
    monkeypatch.setenv("HERMES_TEST_KEY", "sk-secret-of-the-test")
    async with open_model(lambda _: "yes") as model:
        text = TEXT.format(url=model.openai_url, budget=100)
        async with (
            open_agent_setup(load(text), ValueRedactor([]), "") as setup,
            open_runtime(path, build_agent=setup.build, agent_spec=setup.agent_spec) as runtime,
        ):
            await asked(runtime, model, "console")
            await runtime.conversation("c").configure(agent="coder")
            await asked(runtime, model, "console", key="c")
            setup.apply(load(text))  # nothing is different
            reply, *_ = await asked(runtime, model, "console")
            assert reply.build_reason is None
            changed = load(text.replace("'code'", "'big'").replace("programs", "novels"))
            setup.apply(changed)
            reply, used, system = await asked(runtime, model, "console", key="c")
            assert (used, system, reply.build_reason) == ("big", "You write novels.", "signature")
            budget = load(TEXT.format(url=model.openai_url, budget=0))
            setup.apply(budget)
            reply, *_ = await asked(runtime, model, "console")
            assert "budget" in reply.text
