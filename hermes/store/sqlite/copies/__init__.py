"""Copies of an SQLite database: backups, and copies to another database."""
