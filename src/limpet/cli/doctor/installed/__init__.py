"""What install has put on the machine, and other networks' configurations and records beside it.

`doctor.doctor` and `doctor.examine` call `installation`, `cni_configs`, `leftovers` and `records`.
Must not import `cluster`, `firewall`, `machine`, `names` or `pods`, doctor's other rooms.
"""
