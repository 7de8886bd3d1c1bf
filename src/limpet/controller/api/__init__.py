"""The HTTPS API of the controller, and the feed of changes to those who watch.

Call `server.Api`. Bodies are as `cluster.api` says. Must not import `admin`, `orchestrator`, nor
`store` but `store.interface`.
"""
