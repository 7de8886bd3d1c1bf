"""Every row of the table of bounds is probed: what is within it is taken, what is over it is not.

A probe of a new row stands in the file of its party. What takes a real server is in `elsewhere`,
which names the test.
"""
