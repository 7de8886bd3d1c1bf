"""The controller's records and what may be done to them: grants, nodes, reports, recovery.

Call `cluster`. Operations on the tables do no I/O; `registry` is the one writer. Must not import
`admin`, nor `store` but `store.interface`.
"""
