"""The menu of commands that Telegram clients offer."""

from __future__ import annotations

import logging

from hermes.actors.commands import COMMANDS
from hermes.adapters.telegram.api import BotApi
from hermes.errors import HermesError
from hermes.messages import JsonObject, may
from hermes.texts import Texts, help_line

log: logging.Logger = logging.getLogger(__name__)

MAX_DESCRIPTION = 256


async def set_menu(api: BotApi, texts: Texts) -> None:
    """Set the menu; errors are logged, because a bot works without one."""
    try:
        await api.call("setMyCommands", {"commands": menu(texts)})
    except HermesError as error:
        log.info("the menu of commands was not set: %s", error)


def menu(texts: Texts) -> list[JsonObject]:
    """Return the commands of users, as `setMyCommands` takes them."""
    return [
        {"command": name, "description": help_line(texts, name)[1][:MAX_DESCRIPTION]}
        for name, command in COMMANDS.items()
        if may("user", command.role) and command.platform is None
    ]
