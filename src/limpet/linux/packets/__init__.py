"""Packets that this program writes and reads itself: Ethernet frames and what they carry, raw
sockets for them, pings, and datagrams that are sent and received many at a time.

Call `echo`, `raw_frames` or `datagram_batches`; `frames` is pure. Must not import `bpf` or
`nftables`.
"""
