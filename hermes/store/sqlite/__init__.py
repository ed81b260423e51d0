"""The engine for SQLite: everything that knows APSW, or that a database is a file."""
