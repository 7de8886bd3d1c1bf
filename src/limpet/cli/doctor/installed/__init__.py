"""What install has put on the machine, and other networks' configurations and records beside it.

Called by `doctor.doctor` and `doctor.examine`; imports no other room of doctor.
"""
