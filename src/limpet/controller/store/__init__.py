"""Where the cluster's state lives: the interface, and what is behind it: SQLite, or an API server.

Call `interface`; every store passes one suite of tests. Must not import `state`, `admin` or
`controller.api`.
"""
