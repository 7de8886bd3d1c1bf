"""Probes of what is answered by those who are asked: the party `servers`."""
