"""Probes of how long a connection may take, at the bound's own seconds and without their passing.

`clock` is an event loop whose time only a probe moves, `connections` the probes.
"""
