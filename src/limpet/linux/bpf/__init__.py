"""eBPF: objects, maps and links, and what they are attached to.

Call `library`, which has them by libbpf and loads that when it is first used; `place` is where,
`attached` finds what anybody has attached.
Imports nothing of Limpet but `base`.
"""
