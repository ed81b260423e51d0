"""Models: the agents that the host's catalog lists."""

from __future__ import annotations

import openai
import pytest

from hermes.protocols import AgentChoice
from tests.support.http import http_server


class Catalog:
    """Two agents."""

    def choices(self, source):
        return [AgentChoice(name="default", model="small"), AgentChoice(name="coder", model="big")]

    def current(self, settings, source):
        return self.choices(source)[0]

    def servers(self):
        return []


MODELS = ["hermes", "hermes/default", "hermes/coder"]


async def test_the_models_are_the_agents(path):
    async with http_server(path, catalog=Catalog()) as server:
        client = server.openai()
        assert [model.id async for model in client.models.list()] == MODELS
        model = await client.models.retrieve("hermes/coder")
        assert (model.id, model.object, model.owned_by) == ("hermes/coder", "model", "hermes")


async def test_without_a_catalog_there_is_one_model(path):
    async with http_server(path) as server:
        assert [model.id async for model in server.openai().models.list()] == ["hermes"]


async def test_an_unknown_model_is_refused_with_the_list(path):
    async with http_server(path, catalog=Catalog()) as server:
        with pytest.raises(openai.NotFoundError, match="hermes, hermes/default, ") as caught:
            await server.openai().models.retrieve("gpt-4")
        assert caught.value.code == "model_not_found"
