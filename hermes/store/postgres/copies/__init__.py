"""A PostgreSQL database in `hermes store copy`."""
