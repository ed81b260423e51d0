"""Files of the user at the console: attached to messages, and saved from answers.

Paths are read and written by the process of the console only. Nothing here is reachable from a
platform, a client or a model: the bot never reads a path that somebody sends to it.
"""
