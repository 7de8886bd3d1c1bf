"""Nodes of a cluster on one or several links: traffic, communities, repair, other networks."""
