"""The examples of services, each in a real server process: streams, disconnects, retries, stops."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.support.processes import foreign
from tests.support.services import SERVERS, STOPPED, Service

WORDS = "word " * 200
"""The answer to this takes several seconds, if nothing stops it."""


@pytest.fixture(scope="module", params=SERVERS)
def service(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "chats.db"
    with Service(request.param, path) as running:
        yield running


def test_a_service_answers_and_remembers(service):
    assert service.ask("anna", "hello") == "You said: hello"
    assert service.ask("anna", "bye") == "You said: bye"
    assert service.texts("anna") == ["hello", "You said: hello", "bye", "You said: bye"]
    assert service.status("/chats/anna", "x" * 20_000) == 422
    assert service.get("/health") == {"running": 0}


def test_a_service_streams(service):
    with contextlib.closing(service.stream("bert", "hello there")) as events:
        answer = {"text": "You said: hello there", "status": "complete"}
        words = [("delta", f"{word} ") for word in ("You", "said:", "hello", "there")]
        assert list(events) == [*words, ("reply", answer)]


def test_the_same_key_gets_the_same_answer(service):
    for _ in range(2):
        assert service.ask("carla", "hello", key="1") == "You said: hello"
        with contextlib.closing(service.stream("carla", "and now", key="2")) as events:
            [*_, last] = events
        assert last == ("reply", {"text": "You said: and now", "status": "complete"})
    assert service.texts("carla") == ["hello", "You said: hello", "and now", "You said: and now"]
    assert service.status("/chats/carla", "other", key="1") == 409
    assert service.status("/chats/carla/stream", "other", key="1") == 409


def test_a_message_that_is_not_valid_is_refused(service):
    for url in ("/chats/bob", "/chats/bob/stream"):
        connection, response = service.request("POST", url, "")
        with contextlib.closing(connection):
            assert response.status == 422
            refusal = {"detail": "the message is empty: pass a text, attachments or parts"}
            assert json.loads(response.read()) == refusal


def test_a_client_that_disconnects_can_repeat_the_request(service):
    text = "word " * 50
    with contextlib.closing(service.stream("fritz", text, key="1")) as events:
        assert ("delta", "word ") in events
    with contextlib.closing(service.stream("fritz", text, key="1")) as events:
        [*_, last] = events
    answer = f"You said: {text}"
    assert last == ("reply", {"text": answer, "status": "complete"})
    assert service.ask("fritz", text, key="1") == answer
    assert service.texts("fritz") == [text, answer]


def test_an_interrupted_answer_says_so(service):
    with contextlib.closing(service.stream("gerda", WORDS, key="1")) as events:
        assert ("delta", "word ") in events
        service.ask("gerda", "/stop")
        [*_, last] = events
    assert last == ("reply", {"text": "", "status": "interrupted"})
    connection, response = service.request("POST", "/chats/gerda", WORDS, key="1")
    with contextlib.closing(connection):
        assert json.loads(response.read()) == {"text": "", "status": "interrupted"}


def test_a_client_that_disconnects_stops_the_answer(service, prove):
    for number in range(20 if prove else 3):
        name = f"dora{number}"
        with contextlib.closing(service.stream(name, WORDS)) as events:
            assert ("delta", "word ") in events
        service.ask(name, "are you done?")  # waits for the turn before
        assert len(service.texts(name)[1]) < len(WORDS) / 2


@pytest.mark.parametrize("example", SERVERS)
def test_a_service_that_is_stopped_finishes_its_answers(example, path):
    with Service(example, path) as service:
        with contextlib.closing(service.stream("emil", "one two three four", key="1")) as events:
            assert next(events) == ("delta", "You ")
            service.stop()
            [*_, last] = events
        assert last == ("reply", {"text": "You said: one two three four", "status": "complete"})
        assert service.wait() in STOPPED
    assert foreign(path, "SELECT reason FROM boundaries") == [["shutdown"]]  # it was drained
    with Service(example, path) as service:
        assert service.ask("emil", "one two three four", key="1") == last[1]["text"]
