"""Limpet with a real Kubernetes: run by `make test-kube`, which builds its programs first."""
