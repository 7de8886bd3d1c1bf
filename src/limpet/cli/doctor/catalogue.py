"""Every kind of finding, by its id: what it harms, and where the documentation speaks of it.

Ids are stable: programs match them, `limpet help ID` explains them, docs/doctor.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Harm(StrEnum):
    """What somebody suffers, the worst first."""

    PODS = "pods cannot be started or removed"
    ADDRESSES = "addresses may be lost, or held twice"
    REACH = "pods do not reach others"
    STRANGERS = "somebody may get in, or pretend to be a node"
    SERVICES = "Services or names do not work"
    LATER = "works now; the next start, flap or pod may not"
    SPEED = "works, and is slower than it could be"
    UNKNOWN = "could not be looked at"
    NONE = "in order"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding."""

    harm: Harm
    topic: str
    """For `limpet help`: a page of the documentation, or PAGE#SECTION."""


def _of(harm: Harm, **topics: str) -> dict[str, FindingKind]:
    """`topics`: space-separated ids by page or page__section."""
    return {
        each: FindingKind(harm, topic.replace("__", "#").replace("_", "-"))
        for topic, ids in topics.items()
        for each in ids.split()
    }


KINDS: dict[str, FindingKind] = {
    **_of(
        Harm.PODS,
        install=(
            "cni-binary-missing cni-binary-not-executable cni-binary-no-answer cni-config-missing "
            "cni-config-before-ours cni-config-broken cni-config-replaced cni-off kernel-lacks "
            "folder-read-only disk-full runtime-missing runtime-says runtime-conf-dir "
            "runtime-bin-dir runtime-no-loopback bridge-name-taken option-differs not-granted "
            "node-removed"
        ),
        doctor="agent-silent agent-not-ready identity-damaged server-inside",
        configuration="no-segment",
        controller="segment-full",
    ),
    **_of(
        Harm.ADDRESSES,
        install="segment-given-twice records-of-others address-overlaps flannel-segment",
        files="records-unreadable record-damaged records-volatile",
        doctor="address-leaks pods-on-docker",
        controller="segment-outside identity-cloned",
    ),
    **_of(
        Harm.REACH,
        install=(
            "forward-drops firewall-drops-pods port-closed no-underlay-link peers-unreached "
            "tunnel-missing wireguard-missing vxlan-id-taken route-overlaps ipv6-missing ipv6-off "
            "table-taken rule-taken endpoint-shared endpoint-stale nat-without-relay no-relay "
            "relays-silent relay-not-leading relay-role relay-not-greeted relay-ports-closed "
            "relay-ports-taken relay-tls-port flannel-runs flannel-absent vxlan-unheard"
        ),
        doctor=(
            "not-as-planned sysctl-wrong tunnel-rule-missing own-link-down vtep-mac-changed "
            "rule-before-ours leftover-links stale-neighbour pod-mtu no-default-route "
            "conntrack-full bridge-leads-out"
        ),
        policies="policies-unheard",
        configuration="host-port-shared host-port-of-node",
    ),
    **_of(Harm.STRANGERS, security="key-revoked peer-claims", policies="policies-not-said"),
    **_of(
        Harm.SERVICES,
        services="kube-proxy-beside service-left-out",
        dns=(
            "dns-silent dns-version dns-no-services dns-trouble dns-no-upstream dns-loop "
            "dns-upstream-silent dns-address-silent dns-kubelet dns-pods-elsewhere "
            "firewall-drops-names"
        ),
    ),
    **_of(
        Harm.LATER,
        install=(
            "agent-version cni-binary-version joining-unfinished bridge-of-others bridge-shared "
            "networkmanager networkd route-shadowed relay-ports-given-out wireguard-version "
            "file-changed own-leftovers installation-damaged"
        ),
        doctor="clock-wrong sysctl-file",
        configuration="network-key-unknown",
        controller=(
            "segment-nearly-full segment-used-up controller-away no-further-segment "
            "controller-refuses controller-says cluster-disk"
        ),
        kubernetes=(
            "api-server-away api-server-refuses presence-not-told object-unusable "
            "kubernetes-no-node kubernetes-not-asked kubernetes-no-label server-by-service"
        ),
    ),
    **_of(
        Harm.SPEED,
        install="wireguard-slow relay-by-agent reached-by-tls",
        services="services-not-by-ebpf",
    ),
    **_of(
        Harm.UNKNOWN,
        doctor="not-looked-at agent-unclear firewall-unknown iptables-unreadable",
    ),
}
