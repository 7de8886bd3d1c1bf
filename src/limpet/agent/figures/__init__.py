"""Figures of the agent for Prometheus.

Call `metrics.Metrics`, which a server of them shows. Imported only where they are served; `cluster`
is in memory only on a node of a cluster. Must not import `agent.main` or `agent.dispatch`.
"""
