"""Nodes of the API server and nodes of the pod network: who gets in, and what is told of them."""
