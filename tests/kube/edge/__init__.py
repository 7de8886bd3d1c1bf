"""Nodes on machines with systemd, behind caches as edge clusters have them."""
