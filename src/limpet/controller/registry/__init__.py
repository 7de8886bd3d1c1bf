"""The cluster's records in memory, in step with the store: one writer, and what others write beside
it.

Call `registry` to change them, `tables` in what is given to it, `others` to hear. `records` are
what is stored. Must not import `state`, which says what is changed, nor `store` but
`store.interface`.
"""
