"""Worlds that tests of several rooms are played in; one that a room has for itself stands there.

`namespaces` makes every namespace; then a node with pods, nodes joined by a switch or a router, and
sites joined by tunnels. Whole worlds of real agents and a controller: tests/lab/bed.py;
`traffic.silence` and `traffic.first_packet` time what pods of such worlds notice, `traffic.tcp`
lets a pod serve.
"""
