"""What `limpet status` and Prometheus say of the encrypted tunnels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from limpet.cluster.kinds.network import TunnelBackend
from limpet.datapath.tunnel.part import TunnelPart
from limpet.datapath.tunnel.state import PeerReading
from limpet.datapath.tunnel.traffic.watch import TunnelWatch
from limpet.datapath.tunnel.tunnel import Tunnel
from limpet.datapath.tunnel.wireguard.process import SLOW_BEFORE

Document = dict[str, Any]

_COMES_ABOUT_S = 3.0
"""An IPsec tunnel is there in milliseconds, and a second where the other end begins."""
_WITHOUT = (
    "for {:.0f} s no tunnel by IPsec has come about: strongSwan does not run on that node, or "
    "refuses (limpet doctor there says why)"
)
_SESSION_S = 180.0
"""A session is used no longer. Source: WireGuard's paper, section 6.1."""


def tunnel_documents(
    tunnels: TunnelPart, watch: TunnelWatch, *, now_ns: int
) -> dict[str, Document | None]:
    """WireGuard's (`tunnel`), and IPsec's (`ipsec`: None where the cluster names none).

    `now_ns`: of the wall clock, as handshakes are noted.
    """
    rules = tunnels.rules() if any(each.needed for each in tunnels.all) else ()
    found = {
        each.backend: _document(each, watch.active_by(each), rules if each.needed else (), now_ns)
        for each in tunnels.all
    }
    return {
        "tunnel": found[TunnelBackend.WIREGUARD],
        "ipsec": found.get(TunnelBackend.IPSEC),
    }


def _document(tunnel: Tunnel, active: int, rules: Collection[int], now_ns: int) -> Document:
    readings = tunnel.last_readings()
    device = tunnel.kernel.have.device if tunnel.up else None
    ages_s = [handshake_s(each, now_ns) for each in readings.values()]
    return {
        "ifname": tunnel.ifname,
        "port": tunnel.key.port,
        "problem": tunnel.trouble,
        "needed": tunnel.needed,
        "backend": tunnel.made_by,
        "version": tunnel.version,
        "slow": tunnel.made_by == "userspace" and is_slow(tunnel.version),
        "mtu_bytes": device.mtu_bytes if device is not None else None,
        "rules": sorted(rules),
        "peers": len(tunnel.kernel.have.peers),
        "sessions": sum(age_s is not None and age_s < _SESSION_S for age_s in ages_s),
        "active": active,
        "received_bytes": sum(each.received_bytes for each in readings.values()),
        "sent_bytes": sum(each.sent_bytes for each in readings.values()),
    }


def unable_peers(tunnels: TunnelPart, now_s: float) -> dict[str, str]:
    """Peers that have a path by a tunnel which does not come about, by uid, and why.

    `now_s`: of the monotonic clock.
    """
    return {
        tunnel.plan.holders[key]: tunnel.kernel.problem or _WITHOUT.format(now_s - since_s)
        for tunnel in tunnels.all
        for key, since_s in tunnel.kernel.without_s.items()
        if key in tunnel.plan.holders and now_s - since_s > _COMES_ABOUT_S
    }


def peer_document(reading: PeerReading | None, now_ns: int) -> Document:
    """Fields of `PeerStatus` from a reading; None: it is no peer of a device."""
    return {
        "handshake_s": None if reading is None else handshake_s(reading, now_ns),
        "received_bytes": reading.received_bytes if reading is not None else 0,
        "sent_bytes": reading.sent_bytes if reading is not None else 0,
    }


def handshake_s(reading: PeerReading, now_ns: int) -> float | None:
    """Seconds since the last handshake; None: there was none, or the clock was set since."""
    age_s = (now_ns - reading.last_handshake_ns) / 1e9
    return round(age_s, 1) if reading.last_handshake_ns and age_s >= 0 else None


def is_slow(version: str) -> bool:
    """Whether a userspace WireGuard of that version passes a sixth of the traffic only."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    return bool(numbers) and numbers < SLOW_BEFORE
