"""Probes between nodes: messages, their codec, and the ports they go through.

`messages` and `codec` are pure.
"""
