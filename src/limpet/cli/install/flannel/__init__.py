"""A node that flannel runs: what Limpet puts aside when it takes it over, and gives back.

Call `take_over` from install; `give_back_files`, `give_back_devices` and `finish_giving_back` from
uninstall. Must not import the agent's parts.
"""
