"""Pods of this node and the agent that looks after them: what it says, and what the kernel has.

`doctor.doctor` calls `agent` and `attached`. Must not import `cluster`, `firewall`, `installed`,
`machine` or `names`, doctor's other rooms.
"""
