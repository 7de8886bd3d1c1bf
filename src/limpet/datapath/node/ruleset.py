"""nftables text of our table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import collapse_addresses

from limpet.base.addresses import Address, Prefix
from limpet.base.node_state import PortRange
from limpet.base.ownership import MASQUERADE_MARK, NFT_TABLE
from limpet.datapath.node.pod.attachment import Attachment, HostPortMapping


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """One element of a hostPort map: what comes in on `port` goes to the pod's `target_port`."""

    version: int
    host_address: str
    """Empty: any address of the node."""
    protocol: str
    port: int
    target: str
    target_port: int

    @property
    def map_name(self) -> str:
        return f"hostport{self.version}" + ("_at" if self.host_address else "")

    @property
    def key(self) -> str:
        parts = [self.protocol, str(self.port)]
        return " . ".join([self.host_address, *parts] if self.host_address else parts)

    @property
    def element(self) -> str:
        return f"{self.key} : {self.target} . {self.target_port}"


def plan_host_ports(
    mappings: Iterable[HostPortMapping], addresses: Iterable[Address]
) -> tuple[HostPort, ...]:
    """Map elements for a pod; a mapping serves each family that the pod has, sorted."""
    targets: dict[int, str] = {}
    for address in addresses:
        targets.setdefault(address.version, str(address))
    planned = set()
    for mapping in mappings:
        at = mapping.host_address
        for version, target in targets.items():
            if at is not None and at.version != version:
                continue
            anywhere = at is None or at.is_unspecified
            planned.add(
                HostPort(
                    version,
                    "" if anywhere else str(at),
                    mapping.protocol,
                    mapping.host_port,
                    target,
                    mapping.container_port,
                )
            )
    return tuple(sorted(planned))


def plan_host_ports_of(attachments: Iterable[Attachment]) -> tuple[HostPort, ...]:
    """Map elements of all pods; of two pods that ask for the same port the later one counts."""
    by_key: dict[tuple[str, str], HostPort] = {}
    for attachment in attachments:
        addresses = [interface.ip for interface in attachment.addresses]
        for port in plan_host_ports(attachment.port_mappings, addresses):
            by_key[port.map_name, port.key] = port
    return tuple(sorted(by_key.values()))


def host_port_commands(*, add: Iterable[HostPort] = (), delete: Iterable[HostPort] = ()) -> str:
    """nft commands that change the maps, to be run as one transaction; empty for no change.

    Deletions come first: a map does not replace the data of a key that it has.
    """
    lines = [f"delete element inet {NFT_TABLE} {p.map_name} {{ {p.key} }}" for p in delete]
    lines += [f"add element inet {NFT_TABLE} {p.map_name} {{ {p.element} }}" for p in add]
    return "".join(f"{line}\n" for line in lines)


def plan_ruleset(
    *,
    masquerade: Collection[Prefix],
    cluster: Collection[Prefix],
    pods: Collection[Prefix],
    host_ports: Collection[HostPort],
    expect_host_ports: bool = False,
    bridges: Collection[str] = (),
    names_at: Collection[Address] = (),
    own_ports: Collection[PortRange] = (),
    unfiltered: Collection[int] = (),
) -> str:
    """The whole table: what leaves the cluster is masqueraded, hostPorts lead to their pods.

    `masquerade`: prefixes of networks that ask for it. `cluster`: prefixes that pods reach with
    their own address. `pods`: prefixes of pods on this node. `expect_host_ports`: their maps are
    there before the first element. `bridges`: those from which nothing may reach the node's
    127.0.0.0/8; `is_plain_name` holds for each. `names_at`: where pods ask this node for names;
    `own_ports`: what it needs itself. No pod answers there in its place. `unfiltered`: IP
    versions of which bridges show nothing here.

    Only chains that have something to do are there: each one costs every packet of the node, and
    the first one of NAT has all flows tracked.
    """
    expect_host_ports = expect_host_ports or bool(host_ports)
    cluster = {*cluster, *pods}
    lines = [f"table inet {NFT_TABLE} {{"]
    for version in (4, 6):
        kind = f"ipv{version}_addr"
        lines += _prefix_set(f"masquerade{version}", kind, masquerade, version)
        lines += _prefix_set(f"cluster{version}", kind, cluster, version)
        lines += _prefix_set(f"pods{version}", kind, pods, version)
        if expect_host_ports:
            lines += _host_port_maps(version, kind, host_ports)
    lines += _localhost_guard(bridges)
    if expect_host_ports:
        lines += ["\tchain hostports {", *_names(names_at), *_own(own_ports), *_HOST_PORTS]
    if expect_host_ports or masquerade:
        lines += _masquerade(unfiltered)
    lines[-1] = "}"
    return "\n".join(lines) + "\n"


def _host_port_maps(version: int, kind: str, host_ports: Collection[HostPort]) -> list[str]:
    lines = []
    for name, key in (
        (f"hostport{version}", "inet_proto . inet_service"),
        (f"hostport{version}_at", f"{kind} . inet_proto . inet_service"),
    ):
        elements = [port.element for port in host_ports if port.map_name == name]
        lines += [f"\tmap {name} {{", f"\t\ttype {key} : {kind} . inet_service"]
        lines += [*_elements(elements), "\t}", ""]
    return lines


def _prefix_set(name: str, kind: str, prefixes: Iterable[Prefix], version: int) -> list[str]:
    # As the kernel lists them: merged, in order.
    if version == 4:
        wanted = [str(p) for p in collapse_addresses(p for p in prefixes if p.version == 4)]
    else:
        wanted = [str(p) for p in collapse_addresses(p for p in prefixes if p.version == 6)]
    lines = [f"\tset {name} {{", f"\t\ttype {kind}", "\t\tflags interval", "\t\tauto-merge"]
    return [*lines, *_elements(wanted), "\t}", ""]


def _localhost_guard(bridges: Collection[str]) -> list[str]:
    """route_localnet would let pods reach services that listen on 127.0.0.1 only.

    Before connection tracking: answers to the node's own 127.0.0.1 still have another destination
    there. Source: CVE-2020-8558.
    """
    if not bridges:
        return []
    quoted = [f'"{ifname}"' for ifname in sorted(bridges)]
    names = quoted[0] if len(quoted) == 1 else f"{{ {', '.join(quoted)} }}"
    return [
        "\tchain localhost {",
        "\t\ttype filter hook prerouting priority raw; policy accept;",
        f"\t\tiifname {names} ip daddr 127.0.0.0/8 drop",
        "\t}",
        "",
    ]


def _names(addresses: Iterable[Address]) -> list[str]:
    return [
        f"\t\t{'ip' if each.version == 4 else 'ip6'} daddr {each} {protocol} dport 53 return"
        for each in addresses
        for protocol in ("udp", "tcp")
    ]


def _own(ports: Iterable[PortRange]) -> list[str]:
    return [
        f"\t\t{protocol.lower()} dport {first}{f'-{last}' if last > first else ''} return"
        for protocol, first, last in sorted(ports)
    ]


def _elements(elements: list[str]) -> list[str]:
    return [f"\t\telements = {{ {', '.join(elements)} }}"] if elements else []


def _masquerade(unfiltered: Collection[int]) -> list[str]:
    """What another program (kube-proxy, most of all) has led from pod to pod of this node would be
    answered past connection tracking, from the pod's own address, which nobody has asked."""
    answers = [
        f"\t\t{ip} saddr @pods{version} {ip} daddr @pods{version} ct status dnat masquerade"
        for version, ip in ((4, "ip"), (6, "ip6"))
        if version in unfiltered
    ]
    return [*_MASQUERADE[:_ANSWERS_AT], *answers, *_MASQUERADE[_ANSWERS_AT:]]


_MARK = f"{MASQUERADE_MARK:#010x}"
# Nothing leads what comes from ::1 to a pod (IPv6 has no route_localnet, the answer is lost): left
# alone, a client of "localhost" is refused at once there, and goes on to 127.0.0.1. One that has
# chosen another address of the node gets its answer.
_HOST_PORTS = f"""\
		ip6 saddr ::1 ip6 daddr ::1 return
		ip saddr @pods4 meta mark set meta mark | {_MARK}
		ip saddr 127.0.0.0/8 meta mark set meta mark | {_MARK}
		ip6 saddr @pods6 meta mark set meta mark | {_MARK}
		dnat ip to ip daddr . meta l4proto . th dport map @hostport4_at
		dnat ip to meta l4proto . th dport map @hostport4
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostport6_at
		dnat ip6 to meta l4proto . th dport map @hostport6
		meta mark set meta mark & {0xFFFFFFFF ^ MASQUERADE_MARK:#010x}
	}}

	chain prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local jump hostports
	}}

	chain output {{
		type nat hook output priority -100; policy accept;
		fib daddr type local jump hostports
	}}

""".split("\n")[:-1]

_ANSWERS_AT = 3
"""Line behind that of hostPorts."""
_MASQUERADE = f"""\
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & {_MARK} == {_MARK} ct status dnat masquerade
		ip daddr 224.0.0.0/4 accept
		ip6 daddr ff00::/8 accept
		ip saddr @masquerade4 ip daddr != @cluster4 masquerade
		ip6 saddr @masquerade6 ip6 daddr != @cluster6 masquerade
	}}

""".split("\n")[:-1]
