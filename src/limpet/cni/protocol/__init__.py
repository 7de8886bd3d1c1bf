"""The CNI protocol: environment and stdin to a request, results and errors to stdout. Pure.

Call `request.parse_request` and `result.encode_result`. Must not do I/O. Imports nothing of Limpet
but `base`, `ipam.leases` and `datapath.node.pod.attachment`.
"""
