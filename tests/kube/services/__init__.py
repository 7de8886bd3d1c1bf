"""Services and names from a real API server, and kube-proxy beside them."""
