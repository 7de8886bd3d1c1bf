"""A person's commands: `limpet …`.

Asks the agent and the controller; must not do their work.

What only one command needs is imported where that command begins: each command starts all of this,
and signatures, TLS, netlink and the lab take longer to load than most of them run.
"""
