"""Others' firewall rules that stop pods, or what nodes send each other.

`examine` gives the findings.
"""
