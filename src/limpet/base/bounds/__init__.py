"""How much of each thing is taken from another party: one table, by who sends it.

A module that takes something names its row (`members.POD_REPORT.most`) and keeps no number of its
own. `table.TABLE` is all rows; docs/security.md shows it, and each row has a probe in
tests/unit/base/bounds that goes up to the bound and over it. Imports nothing of Limpet.
"""
