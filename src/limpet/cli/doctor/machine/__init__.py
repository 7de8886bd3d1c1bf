"""The machine under Limpet: what its kernel can do, its settings, its links, routes and rules.

Called by `doctor.doctor` and `doctor.examine`; imports no other room of doctor.
"""
