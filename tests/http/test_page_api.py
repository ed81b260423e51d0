"""What the web page needs of the API: choices, exports, and where a message was found."""

from __future__ import annotations

from urllib.parse import quote

from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.messages import Token
from tests.support.http import http_server


def at(name, rest=""):
    return f"/api/conversations/{quote(name, safe='')}{rest}"


async def say(client, text, name):
    response = await client.post(at(name, "/messages"), json={"text": text})
    assert response.status_code == 200, response.text


async def test_the_choices_are_the_commands_of_the_role(path):
    async with http_server(path) as server:
        found = (await server.http().get("/api/choices")).json()
        commands = {each["name"]: each for each in found["commands"]}
        assert commands["retry"]["usage"] == "/retry"
        assert commands["retry"]["help"] == "answer your last message again"
        assert not {"pair", "quit", "attach", "start"} & commands.keys()
        assert found["agents"] == []
        token = Token(
            id=new_id("tok"), name="o", namespace="o", roles=("operator",), keys=(), created_at=0.0
        )
        await server.runtime.api.add_token(token, digest_of(secret := new_secret()))
        found = (await server.http(secret).get("/api/choices")).json()
        assert "pair" in {each["name"] for each in found["commands"]}


async def test_a_conversation_is_exported_for_people_and_for_programs(path):
    async with http_server(path) as server:
        client = server.http()
        await client.post("/api/conversations", json={"id": "name:t", "title": 'a/b "ä"'})
        await say(client, "hello", "name:t")
        text = await client.get(at("name:t", "/export"))
        assert text.headers["content-type"] == "text/markdown; charset=utf-8"
        assert text.text.splitlines()[0] == '# a/b "ä"'
        assert text.text.endswith("echo: hello\n")
        named = text.headers["content-disposition"]
        assert named == "attachment; filename=\"a b _.md\"; filename*=UTF-8''a%20b%20%C3%A4.md"
        value = (await client.get(at("name:t", "/export"), params={"format": "json"})).json()
        assert value["title"] == 'a/b "ä"'
        assert [row["text"] for row in value["messages"]] == ["hello", "echo: hello"]
        refused = await client.get(at("name:t", "/export"), params={"format": "pdf"})
        assert refused.status_code == 400
        empty = await client.get(at("name:none", "/export"), params={"format": "json"})
        assert empty.json()["messages"] == []


async def test_a_found_message_names_its_conversation(path):
    async with http_server(path) as server:
        client = server.http()
        await say(client, "a walrus", "name:sea")
        await say(client, "a camel", "name:land")
        key = (await client.get(at("name:sea"))).json()["session_key"]
        hits = (await client.get("/api/search", params={"q": "walrus", "role": "user"})).json()[
            "hits"
        ]
        assert [hit["session_key"] for hit in hits] == [key]
        await client.post(at("name:sea", "/new"))  # the message is in an earlier session now
        hits = (await client.get("/api/search", params={"q": "walrus", "role": "user"})).json()[
            "hits"
        ]
        assert [hit["session_key"] for hit in hits] == [key]
        own = (await client.get(at("name:sea", "/search"), params={"q": "walrus"})).json()["hits"]
        assert {hit["session_key"] for hit in own} == {key}
