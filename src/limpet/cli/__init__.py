"""A person's commands: `limpet …`.

Call `main.main`, which has the table of all. Asks the agent and the controller; must not do their
work. Must not import `agent.wiring`, `controller.api` or `controller.state`.

What only one command needs is imported where that command begins: each command starts all of this,
and signatures, TLS, netlink and the lab take longer to load than most of them run.
"""
