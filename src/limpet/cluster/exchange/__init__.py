"""What neighbours tell each other of the cluster, with the cloud or without.

`exchange` runs it on the peer socket; all else here is pure.
"""
