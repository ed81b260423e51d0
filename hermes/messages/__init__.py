"""The values that travel through Hermes: frozen, and independent of everything else.

They are `msgspec.Struct`s because a conversation of ten thousand messages is decoded at once, about
as fast as `json.loads` (attrs classes take twice as long), and because forty attrs classes add
forty milliseconds to an import. Types of which many instances exist and which cannot be part of a
reference cycle are excluded from garbage collection (`gc=False`).

Names inside stored JSON are part of the file format: a renamed field keeps its stored name
(`msgspec.field(name=...)`).
"""

from __future__ import annotations

from hermes.messages.access import (
    ROLES as ROLES,
    Pairing as Pairing,
    PairingRejected as PairingRejected,
    Person as Person,
    Principal as Principal,
    Role as Role,
    may as may,
)
from hermes.messages.approvals import (
    Approval as Approval,
    ApprovalState as ApprovalState,
    QuestionDelivery as QuestionDelivery,
    QuestionRoute as QuestionRoute,
)
from hermes.messages.attachments import (
    Attachment as Attachment,
    AttachmentKind as AttachmentKind,
    FileRecord as FileRecord,
    PartType as PartType,
    StoredFile as StoredFile,
    file_id_of as file_id_of,
    file_ids as file_ids,
    stored_file as stored_file,
)
from hermes.messages.cluster import (
    Claim as Claim,
    ClusterView as ClusterView,
    NodeInfo as NodeInfo,
    RoleClaim as RoleClaim,
    node_of as node_of,
)
from hermes.messages.inbox import (
    APPROVAL as APPROVAL,
    Accepted as Accepted,
    Inbound as Inbound,
    InboxRow as InboxRow,
    InboxState as InboxState,
    MessageOutcome as MessageOutcome,
    Receipt as Receipt,
    Source as Source,
    WhenBusy as WhenBusy,
    Withdrawn as Withdrawn,
)
from hermes.messages.live import (
    CachedConversation as CachedConversation,
    CostlySession as CostlySession,
    CostsToday as CostsToday,
    LaneRow as LaneRow,
    LineageSession as LineageSession,
    LiveActor as LiveActor,
    LiveCounts as LiveCounts,
    LiveLane as LiveLane,
    LiveLease as LiveLease,
    ModelCall as ModelCall,
    Payer as Payer,
    PromptDifference as PromptDifference,
    Rebuild as Rebuild,
    Replacement as Replacement,
    StorePulse as StorePulse,
)
from hermes.messages.outbox import (
    InboxReply as InboxReply,
    Outbound as Outbound,
    OutboxRow as OutboxRow,
    OutboxState as OutboxState,
    OutboxStats as OutboxStats,
    StoreStatistics as StoreStatistics,
    StoreStats as StoreStats,
)
from hermes.messages.recordings import (
    CallReport as CallReport,
    CallRows as CallRows,
    Content as Content,
    PastTurn as PastTurn,
    RebuiltCall as RebuiltCall,
    RecordedCall as RecordedCall,
    RecordedResult as RecordedResult,
    Repeats as Repeats,
    TurnEvent as TurnEvent,
    TurnEventKind as TurnEventKind,
    TurnOfRows as TurnOfRows,
    TurnRecord as TurnRecord,
)
from hermes.messages.replies import (
    BuildReason as BuildReason,
    Reply as Reply,
    ReplyStatus as ReplyStatus,
    Usage as Usage,
)
from hermes.messages.requests import (
    NO_OPTIONS as NO_OPTIONS,
    TOKEN_ROLES as TOKEN_ROLES,
    ApiRequest as ApiRequest,
    ApprovalDecision as ApprovalDecision,
    ConnectionState as ConnectionState,
    Opening as Opening,
    StoredResponse as StoredResponse,
    Token as Token,
    ToolOutput as ToolOutput,
    TurnOptions as TurnOptions,
)
from hermes.messages.sessions import (
    RUNTIME_HOLDER as RUNTIME_HOLDER,
    Boundary as Boundary,
    ChangeReason as ChangeReason,
    ConversationSettings as ConversationSettings,
    ExpiryPolicy as ExpiryPolicy,
    HookEvent as HookEvent,
    Hooks as Hooks,
    Imported as Imported,
    Lease as Lease,
    Pruned as Pruned,
    Rotated as Rotated,
    Rotation as Rotation,
    Route as Route,
    Session as Session,
    SessionChange as SessionChange,
    SessionKind as SessionKind,
    SessionMatch as SessionMatch,
    SessionSummary as SessionSummary,
    Skipped as Skipped,
    Title as Title,
)
from hermes.messages.transcript import (
    SUMMARY as SUMMARY,
    Appended as Appended,
    Extra as Extra,
    Head as Head,
    JsonObject as JsonObject,
    Message as Message,
    Posted as Posted,
    SearchHit as SearchHit,
    StoredMessage as StoredMessage,
    ToolCall as ToolCall,
    Transcript as Transcript,
    WaitingMessage as WaitingMessage,
)
from hermes.messages.turns import (
    AgentSpec as AgentSpec,
    Committed as Committed,
    CostTotals as CostTotals,
    Discarded as Discarded,
    RunningTurnInfo as RunningTurnInfo,
    Snapshot as Snapshot,
    Status as Status,
    ToolCallRecord as ToolCallRecord,
    TurnCommit as TurnCommit,
    TurnResult as TurnResult,
)
from hermes.messages.views import (
    ActorInfo as ActorInfo,
    AdmissionHealth as AdmissionHealth,
    AdmissionLevel as AdmissionLevel,
    CacheHealth as CacheHealth,
    ConversationSummary as ConversationSummary,
    ConversationView as ConversationView,
    EventHealth as EventHealth,
    KnownRows as KnownRows,
    LaneInfo as LaneInfo,
    OpenMessage as OpenMessage,
    StoreHealth as StoreHealth,
    StoreSnapshot as StoreSnapshot,
    ToolProgress as ToolProgress,
    TurnProgress as TurnProgress,
    TurnUsage as TurnUsage,
)
