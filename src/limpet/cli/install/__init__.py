"""Installing on a node and taking away again; what that writes is recorded before.

Call `install` and `uninstall`.
"""
