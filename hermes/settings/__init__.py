"""The configuration file of the bot, in TOML.

Reading order: `references`, `schema`, `http`, `agents`, `load`, `validate`, `toml_lines`,
`environment`, `example`, `installation`.
"""

from __future__ import annotations

from hermes.settings.example import example_config as example_config
from hermes.settings.load import (
    Check as Check,
    Problem as Problem,
    SettingsError as SettingsError,
    load as load,
)
from hermes.settings.references import Reference as Reference
from hermes.settings.schema import Settings as Settings
