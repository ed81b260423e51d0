"""URLs of PostgreSQL databases."""

from __future__ import annotations

import traceback

import pytest

from hermes.store.postgres.address import WAIT, parse

SECRET = "s3cret"
INVALID = [
    f"postgresql://me:{SECRET}@host/db?no_such_option=1",
    f"postgresql://me:{SECRET}%zz@host/db",
    f"postgresql://me:{SECRET}@host/db?wait",
    f"postgresql://me:{SECRET}@host/db?wait=soon",
    f"postgresql://me:{SECRET}@host/db?wait=-1",
    f"postgresql://me:{SECRET}@host/db?wait=inf",
    f"postgresql://me:{SECRET}@host/db?accept_data_loss=perhaps",
    f"postgresql://me:{SECRET}@[::1/db",
]


def test_options_of_hermes_are_not_passed_to_the_server():
    address = parse("postgresql://me@host/db?wait=3&accept_data_loss=yes&sslmode=require")
    assert (address.wait, address.accept_data_loss) == (3.0, True)
    assert address.parameters == {
        "user": "me", "host": "host", "dbname": "db", "sslmode": "require",
    }  # fmt: skip


def test_other_options_reach_the_server_as_they_are():
    query = "options=-c%20search_path%3Da&wait=1&password=a+b%2B"
    parameters = parse(f"postgresql://me@host/db?{query}").parameters
    assert (parameters["options"], parameters["password"]) == ("-c search_path=a", "a+b+")


def test_what_is_not_given():
    address = parse("postgresql://host/db")
    assert (address.wait, address.accept_data_loss) == (WAIT, False)
    assert not address.has_several_hosts


def test_several_hosts():
    address = parse("postgres://me@one:5432,two:5433/db")
    assert address.has_several_hosts
    assert (address.parameters["host"], address.parameters["port"]) == ("one,two", "5432,5433")


def test_a_password_is_not_shown():
    address = parse(f"postgresql://me:{SECRET}@host:5432/db?application_name={SECRET}")
    assert address.label == "postgresql://host:5432/db"
    assert address.parameters["password"] == SECRET
    assert SECRET not in repr(address)


@pytest.mark.parametrize("url", INVALID)
def test_an_invalid_url_is_refused_in_one_sentence_without_it(url):
    with pytest.raises(ValueError, match="of the database") as refused:
        parse(url)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
