"""Nodes that share a PostgreSQL database, compared with SQLite and with other durable queues."""
