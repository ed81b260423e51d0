"""The HTTP server in the settings of a bot."""

from __future__ import annotations

import argparse

import pytest

from hermes.run.configuration import http_address
from hermes.run.reload import access_rules, changes, with_changes
from hermes.settings import load


def test_tokens_are_admitted_by_rules_without_pairing():
    assert access_rules(load("")) == {}
    rules = access_rules(load("[http]"))["http"]
    assert (rules.pairing, rules.open, rules.users) == (False, False, frozenset())


def test_a_change_needs_a_restart():
    running, wanted = load("[http]\nport = 1"), load("[http]\nport = 2\nhosts = ['a']")
    applied = with_changes(running, wanted, agents=True)
    assert changes(running, applied) == []
    assert changes(applied, wanted) == ["http.hosts", "http.port"]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:8420", "::1", 8420),
        ("localhost:0", "localhost", 0),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port):
    assert http_address(text) == {"host": host, "port": port}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("abc", "expected HOST:PORT, as in 127.0.0.1:8420, not abc"),
        ("127.0.0.1:abc", "expected HOST:PORT, as in 127.0.0.1:8420, not 127.0.0.1:abc"),
        ("-1", "expected HOST:PORT, as in 127.0.0.1:8420, not -1"),
        (":8420", "expected HOST:PORT, as in 127.0.0.1:8420, not :8420"),
        ("127.0.0.1:70000", "a port is a number from 0 to 65535, not 70000"),
        (f"127.0.0.1:{'9' * 5000}", f"a port is a number from 0 to 65535, not {'9' * 50}"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_one_sentence(text, sentence):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        http_address(text)
    assert str(refused.value) == sentence
