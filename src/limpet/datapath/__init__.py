"""What the node's kernel should hold, and the loop that keeps it so.

Make a `Loop`, add parts to it, wake it. A part is a folder: its state, plan and diff are pure, its
apply touches Linux; what it changes is put or dropped (`change`). Parts are strangers to each
other; what they share is beside the loop. Must not import `paths`, which decides, or `agent`.
"""
