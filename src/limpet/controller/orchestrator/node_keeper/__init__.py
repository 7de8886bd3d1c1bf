"""Nodes of the pod network as their Nodes in Kubernetes are: segments and lifecycle.

Call `keeper`, the process; `pod_cidrs` judges, pure; `segments` and `lifecycle` are operations on
the tables. Must not import `events`, `conditions` or `object_status`, which tell people.
"""
