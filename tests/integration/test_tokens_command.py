"""`hermes tokens`: the secret is printed once, and a revoked token is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.adapters.http.credentials import digest_of
from hermes.cli.main import main
from hermes.store import SessionStore

HERMES = [sys.executable, "-P", "-W", "error", "-m", "hermes"]


@pytest.fixture
def tokens(path, capsys):
    """Run the command in this process; returns the exit code, stdout and stderr."""

    def run(*arguments):
        try:
            code = main(["tokens", *arguments, "--db", str(path)])
        except SystemExit as usage_error:
            code = usage_error.code
        return code, *capsys.readouterr()

    return run


def find(path, secret):
    with SessionStore(path) as store:
        return store.find_token(digest_of(secret.strip()))


def test_the_secret_is_alone_on_stdout_and_is_not_in_the_database(path, tokens):
    code, out, err = tokens("create", "laptop")
    assert code == 0
    assert out.startswith("hms_")
    assert out.count("\n") == 1
    assert "laptop" in err
    assert out.strip() not in err
    assert find(path, out).roles == ("user",)
    assert find(path, out).namespace == "laptop"
    files = [each.read_bytes() for each in path.parent.iterdir() if each.is_file()]
    assert not any(out.strip().encode() in content for content in files)


def test_a_token_has_the_given_roles_keys_namespace_and_expiry(path, tokens):
    _, out, _ = tokens(
        "create", "bot", "--role", "user", "--role", "metrics", "--namespace", "home",
        "--key", "agent:main:telegram:*", "--expires", "30d",
    )  # fmt: skip
    token = find(path, out)
    assert (token.roles, token.namespace) == (("user", "metrics"), "home")
    assert token.keys == ("agent:main:telegram:*",)
    assert token.expires_at == pytest.approx(token.created_at + 30 * 86_400, abs=60)


def test_a_revoked_token_is_not_listed_unless_all_are(path, tokens):
    _, secret, _ = tokens("create", "laptop")
    tokens("create", "phone")
    assert tokens("revoke", "laptop") == (0, "Revoked the token laptop.\n", "")
    assert find(path, secret) is None
    code, out, _ = tokens("list")
    assert code == 0
    assert "phone" in out
    assert "laptop" not in out
    assert "laptop" in tokens("list", "--all")[1]
    code, out, err = tokens("revoke", "laptop")
    assert (code, out) == (1, "")
    assert "no token 'laptop'" in err


def test_json_has_everything_and_the_list_has_no_secret(tokens):
    created = json.loads(tokens("create", "laptop", "--json")[1])
    secret = created.pop("secret")
    listed = json.loads(tokens("list", "--json")[1])
    assert listed == {**created, "valid": True}
    assert secret not in str(listed)
    assert json.loads(tokens("revoke", "laptop", "--json")[1])["revoked_at"] is not None
    assert json.loads(tokens("list", "--all", "--json")[1])["valid"] is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["create"], "NAME"),
        (["create", ""], "name"),
        (["create", "tok_x"], "tok_"),
        (["create", "x", "--role", "admin"], "admin"),
        (["create", "x", "--expires", "30"], "expected"),
        (["create", "x", "--expires", "0d"], "expired"),
        (["create", "x", "--key", ""], "pattern"),
        ([], "command"),
    ],
)
def test_invalid_usage_is_one_sentence(path, capsys, arguments, reason):
    try:
        code = main(["tokens", *arguments, *(["--db", str(path)] if arguments else [])])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert reason in err
    assert "Traceback" not in err


def test_a_name_is_used_once(tokens):
    tokens("create", "laptop")
    code, out, err = tokens("create", "laptop")
    assert (code, out) == (2, "")
    assert "already a token with the name 'laptop'" in err


def test_without_a_database_there_is_nothing_to_list(tokens):
    code, out, err = tokens("list")
    assert (code, out) == (3, "")
    assert "does not exist" in err


@pytest.mark.usefixtures("measure_programs")
def test_a_secret_that_cannot_be_printed_is_no_token(path):
    arguments = [*HERMES, "tokens", "create", "laptop", "--db", str(path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == os.EX_IOERR
    assert done.stderr == "Cannot write the output: no space left on device.\n"
    with SessionStore(path) as store:
        assert store.valid_tokens() == []
