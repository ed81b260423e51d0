"""A configuration with every key, its default, and what it is for; it loads as it stands."""

from __future__ import annotations

EXAMPLE = """\
# Hermes: settings of the standalone bot, for `python -m hermes.run --config hermes.toml`.
# Every key is here. What stands behind a `#` shows the default, or an example where there is none.
# Keys and tokens are never written here, only where they are found: env:NAME or file:PATH.

# Where conversations are kept.
# data = "~/.local/share/hermes/state.db"

# What answers. Without this table: a model where OPENAI_API_KEY or OPENAI_BASE_URL is set, else
# the offline agent.
[agent]
kind = "offline"            # or "openai" (any endpoint that speaks its protocol), or "anthropic"
# model = "gpt-4.1-mini"
# base_url = "https://api.openai.com/v1"
# key = "env:OPENAI_API_KEY"
# system = "You are a helpful assistant. Answer briefly."
# max_tokens = 4000         # of one answer; without it the provider decides
# parameters = { temperature = 0.3 }
# headers = { X-Team = "research" }
# alternate = false         # for local models that insist that user and assistant take turns
# tools = ["my_tools:add", "my_tools:send"]      # functions, by module and name

# What a million tokens cost, by model; with it costs are in the ledger, and budgets hold.
# [agent.prices."gpt-4.1-mini"]
# input = 0.4
# output = 1.6
# cache_read = 0.1
# cache_write = 0.4

# What may be spent: by one conversation, and by one person and by all together on one day.
# [agent.budgets]
# session = 2.0
# principal = 5.0
# day = 50.0

# When a conversation becomes too long for the model, its older part is summed up.
# [compression]
# enabled = true
# model = "gpt-4.1-nano"    # without it, the model that answers
# window = 128000           # tokens that fit into the model
# max_output = 8000         # tokens set aside for the answer
# share = 0.75              # how full the rest may become
# tail_share = 0.2          # how much of it stays word by word at the end
# protect_first = 3         # messages that stay at the beginning

# Titles of conversations, made after the first exchange.
# [titles]
# enabled = true
# model = "gpt-4.1-nano"    # without it, the model that answers

# How turns are run.
[runtime]
busy = "queue"              # a message during a turn: "queue", "interrupt", "steer" or "reject"
# busy_on = { telegram = "steer" }
max_queued = 100              # messages of one conversation that may wait
turn_timeout = 1800.0
drain_timeout = 30.0        # how long turns may go on when the bot is ended
idle_timeout = 900.0   # after so long an idle conversation leaves memory; nothing is lost
max_agents = 128            # cached agents

# When a conversation is over by itself; the next message begins another.
[expiry]
mode = "none"               # or "idle", "daily", "both"
# idle_minutes = 1440.0
# at_hour = 4               # local time
# [expiry_by.telegram]      # by platform, by kind of chat, or both: "telegram/group"
# mode = "idle"

# How much one person may say.
[rates]
per_minute = 30.0
burst = 30

# A bot on Telegram. Ids are numbers, never names: the log (of level info) says who was turned away.
# [telegram]
# token = "env:TELEGRAM_BOT_TOKEN"
# operators = [11111111]    # may do everything, also let others in with /pair
# users = [22222222]
# chats = [-1001234567890]  # groups in which everybody is a guest
# open = false              # true: everybody in the world is a guest
# pairing = true            # strangers get a code that an operator can let them in by
# groups = "mention"        # or "all": whether to answer only who speaks to the bot
# shared_groups = false     # true: one conversation for a whole group
# edits = false             # true: an edited message is said again
# base_url = "https://api.telegram.org"

# Servers with tools, by the Model Context Protocol.
# [mcp.files]
# command = ["my-mcp-server", "--root", "/srv/files"]
# environment = { LANG = "C.UTF-8" }
# keys = { FILES_TOKEN = "env:FILES_TOKEN" }     # also for its environment
# approval = true           # every call is asked of the user first; false: none is
# [mcp.search]
# url = "http://127.0.0.1:8931/mcp"

# Functions that hear of the boundaries of sessions, by module and name.
# [hooks]
# on_session_finalize = ["my_hooks:remember"]
# on_session_reset = []
# on_session_switch = []

[log]
form = "text"               # or "json"
# level = "info"            # or "debug", "warning", "error"; at the console, "warning"

# Figures for Prometheus' node exporter, written every few seconds.
# [metrics]
# file = "/var/lib/node_exporter/hermes.prom"
"""
