"""Real clients of the plugin: containerd and podman, each on a machine made of namespaces.

Run by themselves: `.venv/bin/python -m pytest tests/clients`, as root. With
LIMPET_CLIENTS_NETWORK=reference the same tests run on the reference plugins, which tells a fault
of this bed from one of Limpet (the tests of what only Limpet does then fail, and should).
"""
