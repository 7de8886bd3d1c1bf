"""The agent's process: start, wiring, what a person may ask, metrics.

Run by `limpet agent`. Imported by the commands only, for its client and its status.
"""
