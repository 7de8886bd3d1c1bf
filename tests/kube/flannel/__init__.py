"""Limpet beside real flanneld nodes, and nodes that move from one to the other."""
