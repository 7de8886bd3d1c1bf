"""From the slots of a Service's address to the elements of the programs' maps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limpet.datapath.services.elements import slot_keys
from limpet.datapath.services.sockets import layout
from limpet.services.values import Service, ServicePort

PROTOCOLS = ("TCP", "UDP")
"""The kernel calls no program when a socket of SCTP connects. Source: net/sctp/socket.c."""


def socket_elements(
    key: bytes,
    slots: Sequence[bytes],
    members: Collection[bytes],
    service: Service,
    port: ServicePort,
    *,
    ends_flows: bool,
) -> dict[str, dict[bytes, bytes]]:
    """Elements by map; none where it is left to nftables: also to refuse.

    `key`, `slots`: as nftables gets them. `members`: who may be asked on, in a slot or not.
    `ends_flows`: sockets of UDP can be ended.
    """
    if not slots or port.protocol not in PROTOCOLS:
        return {}
    asked = layout.service(key)
    targets = [layout.target(each) for each in slots]
    is_udp = port.protocol == "UDP"
    found = {
        layout.FRONTENDS: {
            asked: layout.frontend(
                targets, service.affinity_s, not_connected=is_udp and not ends_flows
            )
        }
    }
    if len(targets) > layout.FEW:
        found[layout.SLOTS] = dict(zip(slot_keys(asked, 0, len(targets)), targets, strict=True))
    if is_udp or service.affinity_s:
        may_be_asked = {*targets, *map(layout.target, members)}
        found[layout.MEMBERS] = dict.fromkeys(map(asked.__add__, may_be_asked), layout.MEMBER)
    return found
