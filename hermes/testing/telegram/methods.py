"""The methods that send and change messages, and the files that are sent with them."""

from __future__ import annotations

from hermes.actors.delivery.split import utf16
from hermes.messages import JsonObject
from hermes.testing.markdown_v2 import CannotParse, parse
from hermes.testing.telegram.chats import Chat, SentMessage, buttons_of
from hermes.testing.telegram.errors import ApiError
from hermes.testing.telegram.files import UserFiles
from hermes.testing.telegram.limits import FloodControl
from hermes.testing.telegram.uploads import MAX_UPLOAD, UploadedFile, check_photo

MAX_LENGTH = 4096
MAX_CAPTION = 1024
SENDS_FILE = {
    "sendPhoto": "photo", "sendDocument": "document", "sendAudio": "audio", "sendVoice": "voice",
}  # fmt: skip
_NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are "
    "exactly the same as a current content and reply markup of the message"
)


class BotMethods:
    """What a bot does in chats."""

    def __init__(self, flood_control: FloodControl) -> None:
        self.chats: dict[int, Chat] = {}
        self.files: UserFiles = UserFiles()
        """The files that users have sent."""
        self.flood_control: FloodControl = flood_control
        self.refuse_formatting = False
        """Whether every parse mode is refused."""
        self.refuse_files: dict[str, str] = {}
        """Why files are refused, by method: the description of error 400."""
        self.commands: list[str] = []
        """The menu of commands."""
        self.answered_queries: list[str] = []
        """The ids of pressed buttons that the bot has confirmed."""
        self._next_message_id = 1

    @property
    def now(self) -> float:
        """The server's time, in seconds."""
        raise NotImplementedError

    def method(self, name: str, params: JsonObject) -> object:
        """Call a method. Raises `ApiError`."""
        known = {
            "sendMessage": self._send_message,
            "editMessageText": self._edit_message,
            "deleteMessage": self._delete_message,
            "editMessageReplyMarkup": self._edit_buttons,
            "answerCallbackQuery": self._answer_query,
            "setMyCommands": self._set_commands,
            "sendChatAction": self._chat_action,
            "getFile": self.files.get_file,
        }
        if name in SENDS_FILE:
            return self._send_file(name, params)
        if name not in known:
            raise ApiError(404, "Not Found")
        return known[name](params)

    def _delete_message(self, params: JsonObject) -> bool:
        self._chat(params).find(params.get("message_id"), "delete").deleted = True
        return True

    def _edit_buttons(self, params: JsonObject) -> bool:
        self._chat(params).find(params.get("message_id"), "edit").buttons = buttons_of(params)
        return True

    def _answer_query(self, params: JsonObject) -> bool:
        self.answered_queries.append(str(params.get("callback_query_id")))
        return True

    def _set_commands(self, params: JsonObject) -> bool:
        self.commands = [str(each["command"]) for each in params["commands"]]
        return True

    def _chat_action(self, params: JsonObject) -> bool:
        self._chat(params).typing += 1
        return True

    def _chat(self, params: JsonObject) -> Chat:
        chat = self.chats.get(int(params.get("chat_id", 0)))
        if chat is None:
            raise ApiError(400, "Bad Request: chat not found")
        if chat.moved_to is not None:
            raise ApiError(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                {"migrate_to_chat_id": chat.moved_to},
            )
        if chat.gone is not None:
            raise ApiError(403, f"Forbidden: {chat.gone}")
        return chat

    def _send_message(self, params: JsonObject) -> JsonObject:
        chat = self._writable(params)
        return self._sent(chat, params, self._text(params))

    def _writable(self, params: JsonObject) -> Chat:
        """Return the chat to which a message may be sent now."""
        chat = self._chat(params)
        self.flood_control.check(chat, self.now)
        thread = params.get("message_thread_id")
        if thread is not None and thread not in chat.topics:
            raise ApiError(400, "Bad Request: message thread not found")
        return chat

    def _sent(
        self, chat: Chat, params: JsonObject, text: str, file: UploadedFile | None = None
    ) -> JsonObject:
        reply_to = params.get("reply_parameters", {}).get("message_id")
        parsed = params.get("parse_mode") is not None
        message = SentMessage(
            self.new_message_id(), text, params.get("message_thread_id"), reply_to, self.now,
            parsed, buttons=buttons_of(params), file=file,
        )  # fmt: skip
        chat.messages.append(message)
        return {"message_id": message.message_id, "chat": chat.as_json(), "text": text}

    def _send_file(self, method: str, params: JsonObject) -> JsonObject:
        field = SENDS_FILE[method]
        file = UploadedFile.of(field, params)
        if file.size > MAX_UPLOAD:
            raise ApiError(413, "Request Entity Too Large")
        chat = self._writable(params)
        if method in self.refuse_files:
            raise ApiError(400, f"Bad Request: {self.refuse_files[method]}")
        if field == "photo":
            check_photo(file)
        caption = str(params.get("caption", ""))
        if utf16(caption) > MAX_CAPTION:
            raise ApiError(400, "Bad Request: message caption is too long")
        return self._sent(chat, params, caption, file)

    def _edit_message(self, params: JsonObject) -> JsonObject:
        chat = self._chat(params)
        self.flood_control.check(chat, self.now)
        message = chat.find(params.get("message_id"), "edit")
        text = self._text(params)
        parsed = params.get("parse_mode") is not None
        if (message.text, message.parsed) == (text, parsed):
            raise ApiError(400, _NOT_MODIFIED)
        message.versions.append(message.text)
        message.text, message.parsed = text, parsed
        return {"message_id": message.message_id, "chat": chat.as_json(), "text": text}

    def _text(self, params: JsonObject) -> str:
        text = str(params.get("text", ""))
        if params.get("parse_mode") == "MarkdownV2":
            try:
                text, _ = parse("*" if self.refuse_formatting else text)
            except CannotParse as error:
                raise ApiError(400, f"Bad Request: can't parse entities: {error}") from None
        if not text.strip():
            raise ApiError(400, "Bad Request: message text is empty")
        if utf16(text) > MAX_LENGTH:
            raise ApiError(400, "Bad Request: message is too long")
        return text

    def new_message_id(self) -> int:
        """Return the id of a new message."""
        self._next_message_id += 1
        return self._next_message_id - 1
