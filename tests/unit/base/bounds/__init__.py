"""Every row of the table of bounds is probed: what is within it is taken, what is over it is not.

A probe of a new row stands in the file of its party: of those who are asked in `asked`, of people
in `people`, of seconds that nobody waits for in `times`. Numbers that look like bounds and are none
are in `outside`. What takes a real server is in `elsewhere`, which names the test. A row that the
product goes by in several places has further probes, in `further`.
"""
