"""systemd's units of what an installation runs: agent, controller, the process that answers names,
the page.

Call `service` for what all do, `starting` for the agent. Knows nothing of what else is installed.
"""
