"""The `hermes` command: `chat`, `run`, `status`, `store`, `setup` and `doctor`.

Reading order: `main`, `status`, `setup`, `providers`, `prompts`, `doctor`, `checks`.
"""
