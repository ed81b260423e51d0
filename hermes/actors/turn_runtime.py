"""What agents and tools may do with the runtime during a turn: `Turn.runtime`."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hermes.actors.admission.options import MessageOptions
from hermes.actors.context import RuntimeContext
from hermes.actors.conversation import Conversation
from hermes.actors.intake import Intake
from hermes.actors.supervisor import Supervisor
from hermes.errors import HermesError
from hermes.messages import QuestionRoute, Reply, Source, StoredMessage
from hermes.protocols import OwnConversation, TurnRuntime
from hermes.texts import Texts


def runtime_of_turn(
    session_key: str, context: RuntimeContext, supervisor: Supervisor
) -> TurnRuntime:
    """Return the runtime for the turns of one conversation."""
    intake = Intake(context, supervisor, shows=False)
    # Without access control: the host has allowed what its agents ask.
    internal = Intake(attrs.evolve(context, admission=None), supervisor, shows=False)
    own = ConversationOfTurn(session_key, None, context, intake, supervisor)
    may_ask, route = context.config.agents_may_ask, context.questions.route
    return RuntimeOfTurn(own, context.texts, intake, internal, may_ask, route)


class ConversationOfTurn(Conversation):
    """The conversation of a turn. Programs rely on the verbs of `OwnConversation` only."""

    async def history(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
        include_waiting: bool = False,
    ) -> list[StoredMessage]:
        """Return the stored transcript of the current session, without the running turn."""
        return await super().history(
            limit=limit, before=before, after=after, lineage=lineage,
            include_rewound=include_rewound, include_waiting=include_waiting,
        )  # fmt: skip


@attrs.frozen
class RuntimeOfTurn:
    """The runtime as the turns of one conversation see it.

    Verbs of the conversation that would wait for its running turn raise `WaitCircle`.
    """

    conversation: OwnConversation
    texts: Texts
    _intake: Intake
    _internal: Intake
    _may_ask: bool
    _question_route: Callable[[Source], QuestionRoute]

    def question_route(self, source: Source) -> QuestionRoute:
        """Return how a question reaches the user. See `TurnRuntime.question_route`."""
        return self._question_route(source)

    async def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        event_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - threads cannot cancel it
    ) -> Reply:
        """Send a text to another conversation and wait for the reply. See `TurnRuntime.ask`."""
        if not self._may_ask and session_key != self.conversation.session_key:
            raise HermesError(
                "agents may not ask other conversations: set agents_may_ask in the Config to let "
                "them"
            )
        options: MessageOptions = {
            "source": source, "event_id": event_id, "timeout": timeout, "commands": False,
        }  # fmt: skip
        intake = self._internal if self._may_ask and source is None else self._intake
        return await intake.ask(session_key, text, options)
