"""What looks like a key is hidden wherever it turns up; what only sounds like one is not."""

from __future__ import annotations

import pytest

from hermes.agents.providers.base import HIDDEN, hide_keys

KEYS = [
    "sk-proj-0123456789abcdefABCDEF",
    "sk-ant-api03-ab_cdef-ghijklmnop",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "gsk_abcdefghijklmnop1234",
    "xai-abcdefghijklmnop1234",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
    "key-3ax6xnjp29jd6fds4gc373sgvjxteol0",
]


@pytest.mark.parametrize("key", KEYS)
def test_what_looks_like_a_key_is_hidden(key):
    assert hide_keys(f"it is {key}, they said") == f"it is {HIDDEN}, they said"
    assert hide_keys(f"authorization: Bearer {key}") == f"authorization: {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "A key-value-store with key-exchange and key_management",
        "Bearer tokens and how to renew them",
        "sk-learn-estimators, pk_constraint_name, rk-approximation",
        "key-rotation-policies-of-2024",
    ],
)
def test_what_people_talk_about_is_not(text):
    """Records of conversations and their titles go through this too."""
    assert hide_keys(text) == text
