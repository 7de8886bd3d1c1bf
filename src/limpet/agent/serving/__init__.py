"""Services in the agent, beside `agent.services`: what their backend at the socket needs.

In memory only where Services are on.
"""
