"""Who may talk to whom, by which transport and over which path. Pure.

Plans start from `view`. Must not do I/O nor read a clock.
"""
