"""Objects of an API server as values: what every object has, the kinds that nodes go by, and
Limpet's own, made of signed documents and read back. Pure.

Call the kind's module; `objects` has what all share. Must not import `kubernetes.client`,
`kubernetes.lists` or `kubernetes.reflector`.
"""
