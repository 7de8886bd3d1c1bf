"""A real Prometheus with what is in deploy/monitoring: `make test-monitoring`."""
