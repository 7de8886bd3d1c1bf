"""What a world is made of: cables, sites, gateways, nodes, pods, the controller.

Call `world`. Must not import `demo`, nor `kube` but `kube.cgroups` and `kube.world`.
"""
