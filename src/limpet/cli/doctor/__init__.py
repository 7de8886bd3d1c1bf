"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at.

Each module looks at one thing and gives findings.
"""
