"""Settings of the kernel that Limpet has changed, and that others on this machine need by now."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.base.text.few import few
from limpet.datapath.node.uplinks import FORWARDING
from limpet.datapath.services.kube_proxy import HALF_CLOSED, find_kube_proxy
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl
from limpet.linux.underlay import guest_links

_IP_FORWARD = "net/ipv4/ip_forward"
_REDIRECTS = "net/ipv4/conf/all/accept_redirects"
"""The kernel turns it over with `_IP_FORWARD`."""
_NAMED = 4
"""So many links are told by their names."""


def needed_settings(originals: Mapping[str, str], *, to_flannel: bool) -> dict[str, str]:
    """By path below /proc/sys, who goes on with the value of now.

    Whoever started after Limpet has found the node forwarding, and sets it no more. `originals`:
    values of before Limpet, by path. `to_flannel`: the node is given back. Raises: KernelError.
    """
    needed: dict[str, str] = {}
    who = "flannel" if to_flannel else _guests()
    if who and _is_on(_IP_FORWARD, originals):
        needed |= {_IP_FORWARD: who, _REDIRECTS: who}
    if who and _is_on(FORWARDING, originals):
        # A node that forwards hears its routers by such links alone.
        heard = [path for path in originals if path.endswith("/accept_ra")]
        needed |= {FORWARDING: who, **{path: who for path in heard if read_sysctl(path) == "2"}}
    if HALF_CLOSED in originals and (proxy := find_kube_proxy()):
        needed[HALF_CLOSED] = f"kube-proxy ({proxy})"
    return needed


def _is_on(path: str, originals: Mapping[str, str]) -> bool:
    return path in originals and read_sysctl(path) == "1"


def _guests() -> str:
    with RouteSocket() as route:
        return few(sorted(guest_links(route.links().values())), _NAMED)
