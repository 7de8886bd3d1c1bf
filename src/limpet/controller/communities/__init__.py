"""Communities: who of the edge may talk to whom, by name and by label.

Call `communities` for what they are called, `membership` for who is in which: operations on the
tables, which do no I/O; `node_labels` follows the Nodes. Must not import `controller.api`, `admin`
or `store`.
"""
