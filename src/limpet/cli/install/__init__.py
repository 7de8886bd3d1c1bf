"""Installing on a node and taking away again; what that writes is recorded before.

Call `install.install`, `uninstall.uninstall` and, for the controller, `units.controller_service`;
the machine is looked at by `cli.doctor`. It talks to an agent and a controller that run by socket.
Must not import `agent.main`, `agent.wiring`, `controller.main`, `controller.api` or `cli.commands`.
"""
