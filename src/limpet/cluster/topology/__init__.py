"""Who may talk to whom, by which transport and over which path. Pure.

Call `view.view_of`. Must not do I/O nor read a clock. Must not import `membership`, `replica`,
`exchange` or `datagrams`.
"""
