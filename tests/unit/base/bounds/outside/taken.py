"""Modules that take bytes of others, or begin work for them, and name no row of the table: each
with the reason why none is needed there."""

from __future__ import annotations

UNBOUNDED: dict[str, dict[str, str]] = {
    "begun by this program itself: so many as its parts are, whatever others do": {
        "agent/happenings": "of_node.py",
        "agent": "main.py relay_role.py",
        "base/process": "threads.py",
        "cloud": "following.py session.py",
        "cloud/workloads": "source.py",
        "cluster/snapshot": "file.py",
        "controller": "replica.py",
        "controller/leader": "elector.py",
        "controller/orchestrator": "object_status.py pods.py",
        "controller/registry": "others.py registry.py",
        "controller/state": "cluster.py",
        "controller/store": "sqlite.py",
        "controller/store/kubernetes": "follower.py",
        "datapath/node/pod": "announcer.py reaper.py",
        "datapath/tunnel": "program.py",
        "datapath/tunnel/ipsec": "keeper.py",
        "ipam": "store.py",
        "kubernetes": "reflector.py",
        "linux": "file_changes.py",
    },
    "one at a time: the next begins when it has ended": {
        "agent/serving": "gone_pods.py",
        "cloud/workloads": "policy_source.py service_source.py",
        "controller/api": "shared_works.py",
        "controller/picture": "listed.py making.py silent_nodes.py",
        "agent/answers/picture": "making.py",
        "paths": "proven.py",
        "web/live": "feed.py",
    },
    "for a request at the agent's socket, of which CNI_CONNECTIONS are served at once": {
        "agent/answers": "cluster.py",
        "agent": "services.py",
        "agent/policies": "keeper.py",
        "cni": "interfaces.py repair.py",
    },
    "of a command, which asks and ends": {
        "agent": "client.py",
        "cli": "names.py",
        "cli/bugreport": "pieces.py",
        "cli/connectivity": "prober.py",
        "cli/doctor/names": "examine.py",
        "cli/netcheck": "check.py",
    },
    "the kernel's, or another end of this program, which says little": {
        "base/process": "signals.py",
        "datapath/tunnel/ipsec": "vici.py",
        "datapath/tunnel/wireguard": "process.py",
        "dns": "control.py",
        "dns/handover": "keeper.py ready.py",
        "linux/netlink": "socket.py transactions.py",
    },
    "bounded by the rows of whoever makes it": {
        "base/http": "one_request.py",
    },
    "handed on as it comes, one datagram or byte after the other, to where it is counted": {
        "base/acceptor": "listener.py",
        "cluster/datagrams": "udp_sockets.py",
        "dns/forward": "sockets.py",
        "linux/packets": "datagram_batches.py",
    },
}
"""Why, folder of `src/limpet`, and the files in it."""
