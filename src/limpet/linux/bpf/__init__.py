"""eBPF: objects, maps and links by libbpf (`library`), and what they are attached to (`place`).

Loads libbpf when it is first used, not before.
"""
