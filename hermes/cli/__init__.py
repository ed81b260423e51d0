"""The `hermes` command: `chat`, `run`, `status`, `reload`, `store`, `setup` and `doctor`.

Reading order: `main`, `status`, `store`, `setup`, `providers`, `prompts`, `model_calls`, `doctor`,
`checks`.
"""
