"""Figures of a process for Prometheus: `figures` makes them, `server` answers who asks for them.

Imported only where they are served: the library takes 3 MiB. Knows nothing of what is counted.
"""
