"""What the node's kernel should hold, and the loop that keeps it so.

A part is a folder: state, plan and diff are pure, apply touches Linux. Parts are strangers to
each other.
"""
