"""What a person asks of the controller, over a unix socket that only root may connect to.

The command line calls `client`, the controller `commands.Admin`. Must not import `controller.api`
or `controller.store`.
"""
