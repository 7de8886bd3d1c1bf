"""The agent's process: start, wiring, what a person may ask, metrics.

Call `main.main`, as `limpet agent` does; whoever talks to a running one (commands, the page, the
lab) calls `client.ask`. Must not import `controller`, nor who asks: `cli`, `lab` and `web`.
"""
