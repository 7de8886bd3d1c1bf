"""Traffic control messages: a token bucket on a link, and a redirect of what comes in to an ifb.

Source: include/uapi/linux/pkt_sched.h, pkt_cls.h, tc_act/tc_mirred.h; iproute2 tc/q_tbf.c.
"""

from __future__ import annotations

import struct

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.codec import Request, attr, attr_text, nest

TCA_KIND, TCA_OPTIONS = 1, 2

_TCMSG = struct.Struct("=BxxxiIII")
_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
_TICKS_PER_US = 15.625
"""Scheduler ticks: nanoseconds shifted by 6. Source: PSCHED_SHIFT in include/net/pkt_sched.h."""
_LATENCY_S = 0.025
"""Longest wait in the queue, as the reference bandwidth plugin sets it."""
_MOST_QUEUED_BYTES = 1 << 20
"""The reference lets a whole burst wait; containerd's 512 MiB would wait for minutes, in memory."""
_LARGEST_PACKET_BYTES = 65536
"""The least burst: a packet that is larger than the burst is dropped, however long it waited."""
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_LINKLAYER_ETHERNET = 1
_ETH_P_ALL = 0x0300
_U32_SELECTOR, _U32_ACTION = 5, 7
_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_ACT_STOLEN, _EGRESS_REDIRECT = 4, 1


def token_bucket(ifindex: int, *, rate_bits: int, burst_bits: int, what: str) -> Request:
    """A tbf of `rate_bits` per second as the link's root qdisc."""
    rate = max(rate_bits // 8, 1)
    burst = max(min(burst_bits // 8, 0xFFFFFFFF), _LARGEST_PACKET_BYTES)
    limit = min(int(rate * _LATENCY_S) + min(burst, _MOST_QUEUED_BYTES), 0xFFFFFFFF)
    ticks = min(int(burst * 1e6 / rate * _TICKS_PER_US), 0xFFFFFFFF)
    spec = struct.pack("=BBHhHI", 0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
    parms = spec + bytes(12) + struct.pack("=III", limit, ticks, 0)
    options = attr(_TBF_PARMS, parms) + attr(_TBF_BURST, struct.pack("=I", burst))
    if rate > 0xFFFFFFFF:
        options += attr(_TBF_RATE64, struct.pack("=Q", rate))
    body = _TCMSG.pack(0, ifindex, 0x10000, _ROOT, 0)
    body += attr_text(TCA_KIND, "tbf") + nest(TCA_OPTIONS, options)
    return Request(wire.RTM_NEWQDISC, wire.CREATE | wire.REPLACE, body, ("rate limit on", what))


def ingress_hook(ifindex: int, *, what: str) -> Request:
    """The ingress qdisc, on which filters for incoming packets hang."""
    body = _TCMSG.pack(0, ifindex, 0xFFFF0000, _INGRESS, 0) + attr_text(TCA_KIND, "ingress")
    return Request(wire.RTM_NEWQDISC, wire.CREATE | wire.EXCL, body, ("ingress of", what))


def redirect_ingress(ifindex: int, *, to_ifindex: int, what: str) -> Request:
    """All that comes in on `ifindex` leaves by `to_ifindex`: u32 that matches all, and mirred."""
    selector = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack("=IIii", 0, 0, 0, 0)
    mirred = struct.pack("=IIiiiiI", 0, 0, _ACT_STOLEN, 0, 0, _EGRESS_REDIRECT, to_ifindex)
    action = attr_text(_ACT_KIND, "mirred") + nest(_ACT_OPTIONS, attr(_MIRRED_PARMS, mirred))
    options = attr(_U32_SELECTOR, selector) + nest(_U32_ACTION, nest(1, action))
    body = _TCMSG.pack(0, ifindex, 0, 0xFFFF0000, (1 << 16) | _ETH_P_ALL)
    body += attr_text(TCA_KIND, "u32") + nest(TCA_OPTIONS, options)
    return Request(wire.RTM_NEWTFILTER, wire.CREATE | wire.EXCL, body, ("egress limit of", what))
