"""What the offline agent of a bot says, which names the command that connects a model."""

from __future__ import annotations

from hermes.agents.offline import FALLBACK
from hermes.run.agent_setup import OFFLINE_HINT
from hermes.settings.installation import command


def answer_to(said, program=None):
    """Return the answer of a bot that was started like this test, or as a program with a name."""
    setup = command("setup") if program is None else f"{program} setup"
    return f"You said: {said}\n{FALLBACK} {OFFLINE_HINT.format(setup=setup)}\n"
