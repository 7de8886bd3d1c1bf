"""Figures of a process for Prometheus.

Call `figures.Figures` to make them and `server.MetricsServer` to answer who asks for them. Imported
only where they are served: the library takes 3 MiB. Imports nothing of Limpet but `base`: it knows
nothing of what is counted.
"""
