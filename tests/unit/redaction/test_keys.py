"""`redact_keys` removes what looks like a key, and leaves ordinary words alone."""

from __future__ import annotations

import pytest

from hermes.redaction import REDACTED, Secret, redact_keys
from tests.support.secrets import KEYS


@pytest.mark.parametrize("key", KEYS)
def test_text_that_looks_like_a_key_is_redacted(key):
    assert redact_keys(f"it is {key}, they said") == f"it is {REDACTED}, they said"
    assert redact_keys(f"authorization: Bearer {key}") == f"authorization: {REDACTED}"


@pytest.mark.parametrize(
    "text",
    [
        "A key-value-store with key-exchange and key_management",
        "Bearer tokens and how to renew them",
        "sk-learn-estimators, pk_constraint_name, rk-approximation",
        "key-rotation-policies-of-2024",
    ],
)
def test_ordinary_words_are_not_redacted(text):
    """Summaries and titles of conversations are redacted too."""
    assert redact_keys(text) == text


def test_a_secret_hides_its_value_and_redacts_it():
    secret = Secret(" hush-hush \n")
    assert secret.reveal() == "hush-hush"
    assert "hush" not in repr(secret)
    assert secret.redact(f"hush-hush and {KEYS[0]}") == f"{REDACTED} and {REDACTED}"


def test_a_secret_of_the_environment_is_read_when_it_is_used(monkeypatch):
    secret = Secret.env("HERMES_TEST_KEY")
    assert secret.reveal() is None
    assert secret.redact("text") == "text"
    monkeypatch.setenv("HERMES_TEST_KEY", "hush-hush\n")
    assert secret.reveal() == "hush-hush"
