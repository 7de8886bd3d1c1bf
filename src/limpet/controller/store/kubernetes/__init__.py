"""The controller's store at a Kubernetes API server: items are objects there.

Call `store`; `items` says which kind of item is which object. Must not import `controller.api`,
`state` or `agent`.
"""
