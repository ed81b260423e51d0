"""The configuration file of the bot, in TOML.

Reading order: `schema`, `agents`, `load`, `validate`, `toml_lines`, `environment`, `example`,
`installation`.
"""

from __future__ import annotations

from hermes.settings.example import example_config as example_config
from hermes.settings.load import (
    Check as Check,
    Problem as Problem,
    SettingsError as SettingsError,
    load as load,
)
from hermes.settings.schema import Reference as Reference, Settings as Settings
