"""The CNI configuration that makes runtimes call Limpet."""

from __future__ import annotations

import json

CONFLIST = "10-limpet.conflist"
"""Its file name: runtimes take the first of the folder."""


def conflist_text(network_name: str) -> bytes:
    """The network's configuration, for runtimes of every age.

    A configuration or result of 1.1.0 breaks libcni before 1.2 (containerd 1.6 and 1.7, podman 4):
    that reads `cniVersion` alone. A newer one (containerd 2, CRI-O 1.31) takes the highest of
    `cniVersions` that it speaks, and from 1.1.0 on it asks STATUS: so it hears of a dead agent.

    With br_netfilter (`bridge-nf-call-iptables` = 1, as kubeadm and kube-proxy ask for) a pod that
    asks itself by a Service is bridged, back out of its own port: ports have hairpin on.
    """
    document = {
        "cniVersion": "1.0.0",
        "cniVersions": ["1.0.0", "1.1.0"],
        "name": network_name,
        "plugins": [
            {
                "type": "limpet",
                "ipMasq": True,
                "isDefaultGateway": True,
                "hairpinMode": True,
                "ipam": {"type": "limpet"},
                "capabilities": {
                    "portMappings": True,
                    "bandwidth": True,
                    "ips": True,
                    "mac": True,
                    "io.kubernetes.cri.pod-annotations": True,
                },
            }
        ],
    }
    return json.dumps(document, indent=2).encode() + b"\n"
