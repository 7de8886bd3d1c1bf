"""Several parts as one: the peers' put together, and a trial of what the kernel can do for all.

Call `peer_parts.PeerParts` and `kernel_trial.try_features`. Must not import `agent` or `paths`; no
part imports it.
"""
