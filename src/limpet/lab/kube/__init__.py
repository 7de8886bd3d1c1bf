"""A real Kubernetes on this machine: its programs, a control plane and nodes in namespaces.

Call `control_plane.ControlPlane`. Needs the programs of scripts/fetch-kubernetes. Must not import
`limpet.kubernetes`: it knows nothing of what Limpet says to an API server.
"""
