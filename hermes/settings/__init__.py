"""What the standalone bot can be told, in a TOML file.

Read: schema, rules, reading, lines, example.
"""

from __future__ import annotations

from hermes.settings.example import EXAMPLE as EXAMPLE
from hermes.settings.reading import (
    BadSettings as BadSettings,
    Problem as Problem,
    read as read,
    read_file as read_file,
)
from hermes.settings.schema import Reference as Reference, Settings as Settings
