"""What a member says of itself that is another's: what is done with it, on the wire.

One bed for all rows of the table in docs/security.md: real plans in real kernels, with the packets
of pods and of agents. `claims_bed` is the world; a row is a test. Must not know a test's room.
"""
