"""Communities: who of the edge may talk to whom, by name and by label.

Operations on the tables; none does I/O.
"""
