"""Installing on a node and taking away again; what that writes is recorded before.

Call `install.install`, `uninstall.uninstall` and, for the controller, `controller_service`; the
machine is looked at by `cli.doctor`. It imports no part of an agent or controller that runs: it
talks to them by socket.
"""
