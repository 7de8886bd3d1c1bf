"""Figures of the agent for Prometheus: `metrics.Metrics` is what a server of them shows.

Imported only where they are served. `cluster` is in memory only on a node of a cluster.
"""
