"""Egress filtering, as kinvolk's egress-filtering-benchmark compares it: the ways that there are,
what a packet costs in each, the table and the plot.

Call `bench.policies.filtering.policies`. Must not import other measures.
"""
