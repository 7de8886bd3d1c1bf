"""The API server of a Kubernetes cluster, as a client sees it, and Limpet's custom resources there.

Call `find_access` (whom to ask, and as whom), `Client` (objects read and written), `Reflector`
(list and watch), `pods` and `reviews`; `kinds` has objects as values. Must not import `controller`,
`cloud`, `agent` or `cli`.
"""
