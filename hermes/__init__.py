"""Hermes runs chat agents on Trio: one actor per conversation, durable in SQLite.

Every message is on disk before it is acknowledged, and every turn is committed as a whole. Open a
runtime with `open_runtime` (Trio), `hermes.embed.open_runtime_asyncio` (asyncio) or
`hermes.embed.start_runtime` (no event loop):

    async with hermes.open_runtime("state.db", agent=reply) as runtime:
        print((await runtime.ask("me", "Hello!")).text)

To read the code: messages, events, protocols, actors.kernel, actors.session (actor, then turn),
actors.runtime, store, embed. docs/architecture.md walks through one turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import lazy_names

if TYPE_CHECKING:
    from hermes import embed as embed, errors as errors, events as events
    from hermes.actors.admin import (
        AdapterState as AdapterState,
        Admin as Admin,
        RuntimeStatistics as RuntimeStatistics,
    )
    from hermes.actors.admission.access import (
        AccessPolicy as AccessPolicy,
        PlatformRules as PlatformRules,
    )
    from hermes.actors.admission.options import MessageOptions as MessageOptions
    from hermes.actors.conversation import Conversation as Conversation
    from hermes.actors.event_bus import Subscription as Subscription
    from hermes.actors.runtime import Runtime as Runtime
    from hermes.actors.stream import Stream as Stream
    from hermes.config import (
        AttachmentLimits as AttachmentLimits,
        CompressionConfig as CompressionConfig,
        Config as Config,
        RateLimit as RateLimit,
    )
    from hermes.context import (
        current_session_id as current_session_id,
        current_session_key as current_session_key,
        current_turn_id as current_turn_id,
        set_current_session_id as set_current_session_id,
    )
    from hermes.embed.trio_host import open_runtime as open_runtime
    from hermes.errors import (
        ActorStopped as ActorStopped,
        AlreadyAnswered as AlreadyAnswered,
        AmbiguousTitle as AmbiguousTitle,
        AttachmentRefused as AttachmentRefused,
        AttachmentTooLarge as AttachmentTooLarge,
        AttachmentUnavailable as AttachmentUnavailable,
        BadImport as BadImport,
        CannotRebuild as CannotRebuild,
        CompressorFailed as CompressorFailed,
        ContextOverflow as ContextOverflow,
        Draining as Draining,
        EventConflict as EventConflict,
        FileDamaged as FileDamaged,
        HasContinuation as HasContinuation,
        HermesError as HermesError,
        HistoryChanged as HistoryChanged,
        MessageRefused as MessageRefused,
        NotAdmitted as NotAdmitted,
        NotApproved as NotApproved,
        NotInLineage as NotInLineage,
        OutcomeUnknown as OutcomeUnknown,
        Overloaded as Overloaded,
        RateLimited as RateLimited,
        ReplyNotFound as ReplyNotFound,
        ReplyTimeout as ReplyTimeout,
        RequestRefused as RequestRefused,
        RetryAfter as RetryAfter,
        SessionEnded as SessionEnded,
        StoreBusy as StoreBusy,
        StoreError as StoreError,
        StoreFailed as StoreFailed,
        StoreFull as StoreFull,
        StoreInUse as StoreInUse,
        StoreRefused as StoreRefused,
        StoreUnavailable as StoreUnavailable,
        TitleTaken as TitleTaken,
        TitleTooLong as TitleTooLong,
        TurnClosed as TurnClosed,
        UnknownFile as UnknownFile,
        UnknownSession as UnknownSession,
        UnknownTurn as UnknownTurn,
        Unsendable as Unsendable,
        WaitCircle as WaitCircle,
    )
    from hermes.events import (
        AgentEvent as AgentEvent,
        ApprovalAsked as ApprovalAsked,
        AssistantMessage as AssistantMessage,
        Envelope as Envelope,
        MessageAccepted as MessageAccepted,
        MessagePosted as MessagePosted,
        MessageWaiting as MessageWaiting,
        Notice as Notice,
        ReasoningDelta as ReasoningDelta,
        Retrying as Retrying,
        RuntimeEvent as RuntimeEvent,
        SessionMoved as SessionMoved,
        Steered as Steered,
        TextDelta as TextDelta,
        TitleChanged as TitleChanged,
        ToolFinished as ToolFinished,
        ToolStarted as ToolStarted,
        TurnEnded as TurnEnded,
        TurnStarted as TurnStarted,
    )
    from hermes.messages import (
        AgentSpec as AgentSpec,
        Approval as Approval,
        Attachment as Attachment,
        AttachmentKind as AttachmentKind,
        ConversationSettings as ConversationSettings,
        CostTotals as CostTotals,
        ExpiryPolicy as ExpiryPolicy,
        Hooks as Hooks,
        Inbound as Inbound,
        JsonObject as JsonObject,
        Message as Message,
        OutboxRow as OutboxRow,
        Receipt as Receipt,
        Reply as Reply,
        RunningTurnInfo as RunningTurnInfo,
        SearchHit as SearchHit,
        Session as Session,
        SessionChange as SessionChange,
        SessionMatch as SessionMatch,
        SessionSummary as SessionSummary,
        Snapshot as Snapshot,
        Source as Source,
        Status as Status,
        StoredFile as StoredFile,
        StoredMessage as StoredMessage,
        StoreStats as StoreStats,
        Title as Title,
        ToolCall as ToolCall,
        TurnOptions as TurnOptions,
        TurnResult as TurnResult,
        Usage as Usage,
        WaitingMessage as WaitingMessage,
        WhenBusy as WhenBusy,
    )
    from hermes.protocols import (
        Adapter as Adapter,
        Agent as Agent,
        AgentCatalog as AgentCatalog,
        AgentChoice as AgentChoice,
        Build as Build,
        Compressor as Compressor,
        Describe as Describe,
        FileReader as FileReader,
        HasAccount as HasAccount,
        HasLimit as HasLimit,
        HasLocal as HasLocal,
        OwnConversation as OwnConversation,
        RunsOnTrio as RunsOnTrio,
        ServerInfo as ServerInfo,
        Summary as Summary,
        SummaryRequest as SummaryRequest,
        SupportsAbandon as SupportsAbandon,
        SupportsAclose as SupportsAclose,
        SupportsFiles as SupportsFiles,
        SupportsReady as SupportsReady,
        Titler as Titler,
        TitleRequest as TitleRequest,
        ToolInfo as ToolInfo,
        Transcriber as Transcriber,
        Turn as Turn,
        TurnRuntime as TurnRuntime,
    )
    from hermes.session_keys import session_key as session_key
    from hermes.texts import Texts as Texts

__version__ = "0.1.0.dev0"

# Type checkers read the imports above; at run time each name is imported on first use.
_NAMES = {
    "embed": "embed",
    "errors": "errors ActorStopped AlreadyAnswered AmbiguousTitle AttachmentRefused "
    "AttachmentTooLarge "
    "AttachmentUnavailable BadImport CannotRebuild CompressorFailed "
    "ContextOverflow Draining EventConflict FileDamaged HasContinuation HermesError "
    "HistoryChanged "
    "MessageRefused NotAdmitted NotApproved NotInLineage OutcomeUnknown Overloaded RateLimited "
    "ReplyNotFound "
    "ReplyTimeout RequestRefused RetryAfter SessionEnded StoreBusy StoreError StoreFailed "
    "StoreFull StoreInUse StoreRefused StoreUnavailable TitleTaken TitleTooLong TurnClosed "
    "UnknownFile UnknownSession UnknownTurn Unsendable WaitCircle",
    "events": "events AgentEvent ApprovalAsked AssistantMessage Envelope MessageAccepted "
    "MessagePosted MessageWaiting Notice ReasoningDelta Retrying RuntimeEvent SessionMoved Steered "
    "TextDelta TitleChanged ToolFinished ToolStarted TurnEnded TurnStarted",
    "actors.admin": "AdapterState Admin RuntimeStatistics",
    "actors.admission.access": "AccessPolicy PlatformRules",
    "actors.admission.options": "MessageOptions",
    "actors.conversation": "Conversation",
    "actors.event_bus": "Subscription",
    "actors.runtime": "Runtime",
    "actors.stream": "Stream",
    "config": "AttachmentLimits CompressionConfig Config RateLimit",
    "context": "current_session_id current_session_key current_turn_id set_current_session_id",
    "embed.trio_host": "open_runtime",
    "messages": "AgentSpec Approval Attachment AttachmentKind ConversationSettings CostTotals "
    "ExpiryPolicy Hooks Inbound JsonObject Message OutboxRow Receipt Reply RunningTurnInfo "
    "SearchHit Session SessionChange SessionMatch SessionSummary Snapshot Source Status StoreStats "
    "StoredFile StoredMessage Title ToolCall TurnOptions TurnResult Usage WaitingMessage WhenBusy",
    "protocols": "Adapter Agent AgentCatalog AgentChoice Build Compressor Describe FileReader "
    "HasAccount HasLimit HasLocal OwnConversation RunsOnTrio ServerInfo Summary SummaryRequest "
    "SupportsAbandon SupportsAclose SupportsFiles SupportsReady TitleRequest Titler ToolInfo "
    "Transcriber Turn TurnRuntime",
    "session_keys": "session_key",
    "texts": "Texts",
}
if not TYPE_CHECKING:  # else a misspelt name would be an `object`, and no error
    __all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
