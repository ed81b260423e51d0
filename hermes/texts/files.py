"""What users are told about files."""

from __future__ import annotations

from hermes.texts.help import HelpTexts


class FileTexts(HelpTexts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users are told about the files that they send or receive."""

    file_refused: str = "Your file was not accepted: {error}."
    """Telegram: a message was accepted without its file, which was refused."""
    file_not_downloaded: str = "Your file could not be downloaded. Please send it again."
    """Telegram: a message was accepted without its file."""
    file_too_large: str = "it is too large to be sent here"
    """Telegram: why a file of a reply is only named."""
