"""Where the cluster's state lives: the interface, and SQLite behind it.

Call `interface`; every store passes one suite of tests.
"""
