"""What a world does: who reaches whom, by which path, how long nothing came.

Asked from the kernel and the agents, never remembered.
"""
