"""A real API server with a thousand nodes, and the table of k8s-bench-suite."""
