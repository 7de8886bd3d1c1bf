"""Pods of this node and the agent that looks after them: what it says, and what the kernel has.

Called by `doctor.doctor`; imports no other room of doctor.
"""
