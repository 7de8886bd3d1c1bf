"""Nodes whose pods are held to policies and to their addresses."""
