"""Figures of the controller for Prometheus, read when they are asked for.

Call `metrics.Metrics`; its table has every figure. Must not import `state`, `api` or `admin`.
"""
