"""What policies come to, for people: whether a connection may begin, and what holds between the
pods of two nodes. Pure.

Call `verdict.judge`, `between.side_of` and `words`. Imports nothing of Limpet but `base` and
`policies`, which imports none of it: no I/O, no clock.
"""
