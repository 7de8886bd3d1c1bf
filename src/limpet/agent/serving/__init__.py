"""What an agent does for Services beside their rules: whose containers are gone, the answer
to load balancers that ask whether this node serves, what the backend at the socket needs, and which
addresses and ports are taken.

`agent.services` calls `gone_pods.GonePods`, `health.ServiceHealth`, `sockets.AtSocket` and
`surroundings.ServiceSurroundings`. In memory only where Services are on. Must not import `agent`.
"""
