"""Under which heading `limpet --help` lists a command; a test holds that each is under one."""

GROUPS = {
    "This node": (
        "status",
        "peer",
        "path",
        "ipam",
        "service",
        "policy",
        "dns",
    ),
    "Diagnosis": (
        "ui",
        "events",
        "doctor",
        "netcheck",
        "ping",
        "connectivity",
        "trace",
        "help",
        "bugreport",
    ),
    "The cluster": ("node", "community", "network", "segment", "pod", "token"),
    "Setting up": ("install", "join", "uninstall", "bundle", "completion"),
    "Trying it out": ("lab",),
    "Processes": ("agent", "controller"),
}
