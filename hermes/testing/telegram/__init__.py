"""A Bot API server on loopback, with the semantics, limits and faults of the real one; for tests.

Users write with `say` and similar methods; the messages of the bot are in `chats`. Updates are kept
for a day, confirmed by offset, and sent again until then. Time is the server's own and can be
advanced.

Reading order: `server` (the server), `methods` (what a bot does in chats), `chats` (chats and
messages), `files` and `uploads` (files of users and of the bot), `updates` (the update queue),
`limits` (flood control), `errors` (error responses and faults).
"""

from __future__ import annotations

from hermes.testing.telegram.chats import Chat as Chat, SentMessage as SentMessage
from hermes.testing.telegram.errors import Fault as Fault
from hermes.testing.telegram.limits import NO_LIMITS as NO_LIMITS, Limits as Limits
from hermes.testing.telegram.server import (
    TOKEN as TOKEN,
    LoopbackTelegram as LoopbackTelegram,
    open_telegram as open_telegram,
)
from hermes.testing.telegram.updates import DAY as DAY, WEEK as WEEK
from hermes.testing.telegram.uploads import UploadedFile as UploadedFile
