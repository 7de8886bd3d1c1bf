"""systemd's units of what an installation runs: agent, controller, the process that answers names,
the page.

Call `service` for what all do, and a file of its own for each but the agent's, which is `starting`
beside this. Must not import `install.install`, `install.starting` or `install.flannel`.
"""
