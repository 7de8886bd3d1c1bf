"""Pods of containerd and containers of podman."""
