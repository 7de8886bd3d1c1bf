"""The CNI protocol: environment and stdin to a request, results and errors to stdout. Pure.

Call `cni`. Must not do I/O.
"""
