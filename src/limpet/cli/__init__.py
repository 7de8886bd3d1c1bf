"""A person's commands: `limpet …`.

Asks the agent and the controller; must not do their work.
"""
