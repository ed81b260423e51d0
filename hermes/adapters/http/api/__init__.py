"""The API of Hermes, under `/api`: conversations, events, approvals, usage and status.

Reading order: `names` (how a request names a conversation), `types` (what clients send and
receive), `conversations`, `messages`, `edits`, `verbs`, `approvals`, `operators` (the endpoints),
`streams` (events that continue after a lost connection), `openapi` (the document of all endpoints).
"""
