"""What a world is made of: cables, sites, gateways, nodes, pods, the controller.

Call `world`.
"""
