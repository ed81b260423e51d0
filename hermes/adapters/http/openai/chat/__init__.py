"""Chat Completions: the client has the history, and Hermes may have it too."""
