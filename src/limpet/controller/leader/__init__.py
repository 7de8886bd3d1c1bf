"""Election of the controller that writes: one at a time, by a Lease at the API server.

Call `elector`; `election` is its state machine, pure. Must not import `registry`, `state`, `store`,
`admin`, nor `controller.api` but `api.connections`: who follows has no records.
"""
