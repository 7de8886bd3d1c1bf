"""Fuzzing: every parser of what another party or a disk gives, as a target that coverage guides.

`python -m tests.fuzz run` (by `make fuzz` and `make fuzz-quick`) lets atheris look for inputs that
a parser neither takes nor refuses in its own words, or that cost out of proportion; `play` gives
one of them once more. The tests of this folder play the samples of `corpora` and mutations of them
without atheris, and hold that each parser of Limpet is a target. `targets` has these, a file for
each kind of party; `live` throws inputs at whole processes. Why so: docs/decisions/fuzzing.md.
"""
