"""What an agent does for Services beside their rules: whose containers are gone, the answer
to load balancers that ask whether this node serves, and what the backend at the socket needs.

`agent.services` calls `gone_pods.GonePods`, `health.ServiceHealth` and `sockets.AtSocket`. In
memory only where Services are on. Must not import `agent`.
"""
