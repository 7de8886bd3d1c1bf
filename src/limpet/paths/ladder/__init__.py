"""The ladder of paths: what is asked of a peer next, and what the answers prove. Pure, time passed
in.

Call `ladder`. Must not do I/O nor read a clock.
"""
