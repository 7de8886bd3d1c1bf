"""The ladder of paths: what is asked of a peer next, and what the answers prove. Pure, time passed
in.

Call `peer_ladders`, for one peer `ladder`. Must not do I/O nor read a clock. Must not import
`datapath`, `linux`, nor `paths.probe` but `probe.messages`.
"""
