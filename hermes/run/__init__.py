"""The standalone bot, `python -m hermes.run`: where settings become parts.

Read: command, parts, watching.
"""
