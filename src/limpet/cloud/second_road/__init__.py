"""The second road of documents: objects of an API server, or of a cache in its place.

Call `api_server`; `state` is what others may know of it, in memory also where nobody takes it.
Joining, segments and reports of pods are the controller's on both roads. Must not import `session`,
`join` or `link`, the first road.
"""
