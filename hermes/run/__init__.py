"""The standalone bot, `python -m hermes.run`: opens everything that the settings describe.

Reading order: `__main__`, `configuration`, `config_file`, `app`, `attached`, `agent_setup`,
`model_agents`, `platforms`, `references`, `reload`, `telemetry`, `status`, `logs`.
"""
