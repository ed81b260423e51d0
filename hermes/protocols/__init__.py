"""The interfaces that users implement and that separate the layers: agents, adapters, the store.

Optional capabilities are separate protocols (`SupportsAclose`, `HasLimit`, ...): an object that
has the attribute has the capability.
"""

from __future__ import annotations

from hermes.protocols.adapter import (
    Adapter as Adapter,
    HasAccount as HasAccount,
    HasLimit as HasLimit,
    HasLocal as HasLocal,
    SupportsFiles as SupportsFiles,
    SupportsReady as SupportsReady,
)
from hermes.protocols.agent import (
    Agent as Agent,
    Build as Build,
    Compressor as Compressor,
    Describe as Describe,
    Hook as Hook,
    OwnConversation as OwnConversation,
    RebuildRequest as RebuildRequest,
    RecordsCalls as RecordsCalls,
    RepeatsTurn as RepeatsTurn,
    RunsOnTrio as RunsOnTrio,
    SpentSoFar as SpentSoFar,
    Summary as Summary,
    SummaryRequest as SummaryRequest,
    SupportsAbandon as SupportsAbandon,
    SupportsAclose as SupportsAclose,
    Titler as Titler,
    TitleRequest as TitleRequest,
    Transcriber as Transcriber,
    Turn as Turn,
    TurnRuntime as TurnRuntime,
)
from hermes.protocols.catalog import (
    AgentCatalog as AgentCatalog,
    AgentChoice as AgentChoice,
    ServerInfo as ServerInfo,
    ToolInfo as ToolInfo,
)
from hermes.protocols.cluster import (
    Cluster as Cluster,
    Hints as Hints,
    Membership as Membership,
    Ownership as Ownership,
    Roles as Roles,
)
from hermes.protocols.files import FileReader as FileReader, FileStore as FileStore
from hermes.protocols.inbox import InboxStore as InboxStore
from hermes.protocols.records import (
    AccessStore as AccessStore,
    ApiStore as ApiStore,
    ToolRecords as ToolRecords,
)
from hermes.protocols.store import (
    CompressionStore as CompressionStore,
    OutboxStore as OutboxStore,
    SessionStoreVerbs as SessionStoreVerbs,
    Store as Store,
    TranscriptStore as TranscriptStore,
    UsageStore as UsageStore,
)
from hermes.protocols.views import ViewStore as ViewStore
