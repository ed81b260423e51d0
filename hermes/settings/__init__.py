"""What the standalone bot can be told, in a TOML file.

Read: schema, rules, reading, lines, example.
"""

from __future__ import annotations

from hermes.settings.example import EXAMPLE as EXAMPLE
from hermes.settings.load import (
    BadSettings as BadSettings,
    Problem as Problem,
    located as located,
    read as read,
)
from hermes.settings.schema import Reference as Reference, Settings as Settings
