"""`accept` and `commit_turn` as functions in the database, for the usual case."""
