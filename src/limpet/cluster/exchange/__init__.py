"""What neighbours tell each other of the cluster, with the cloud or without.

Call `exchange.Exchange`, which runs it on the peer socket, and `pod_lookup.PodLookup`, which asks
for a pod's name; all else here is pure. Must not import `kinds` but `kinds.fields`: it tells
documents of any kind.
"""
