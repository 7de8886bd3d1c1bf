"""A node that flannel runs: what Limpet puts aside when it takes it over, and gives back.

Call `take_over` from install; its `give_back_files`, `give_back_devices` and `finish_giving_back`
from uninstall. Must not import `install.install`, `install.uninstall`, nor `datapath`
but `datapath.overlay.vtep`.
"""
