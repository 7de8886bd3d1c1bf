"""How much of each thing is taken from another party: one table, by who sends it.

Take a row by its name, as `members.TOLD_PODS`: who takes something keeps no number of its own.
`table.TABLE` is all rows; docs/security.md shows it, and each row has a probe in
tests/unit/base/bounds that goes up to the bound and over it. A number elsewhere that looks like a
bound fails a test there, unless it is named with the reason why it is none of what others send.
Imports nothing of Limpet.
"""
