"""Roles."""

from __future__ import annotations

from hermes.messages import ROLES, may


def test_a_role_includes_all_lower_roles():
    assert [may(a, b) for a in ROLES for b in ROLES] == [
        *(True, False, False), *(True, True, False), *(True, True, True),
    ]  # fmt: skip
