"""The token of a bot is redacted everywhere."""

from __future__ import annotations

from hermes.redaction.keys import Secret


def test_anything_that_looks_like_a_bot_token_is_redacted():
    token = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
    assert token not in Secret("another").redact(f"https://api.telegram.org/bot{token}/getMe")
