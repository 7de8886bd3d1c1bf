"""What nodes hear of workloads at an API server, and keep."""
