"""Webhooks: an event of another service becomes a message, and is answered by a turn.

Reading order: `signatures` (who sent it), `templates` (the text of its message), `routes`.
"""
