"""The IKE daemon's settings file, and the documents of its VICI interface.

Source: strongswan.conf(5), and README.md of strongSwan's vici plugin.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from typing import Any

from limpet.base.addresses import Endpoint, Prefix
from limpet.base.bounds.strangers import (
    IKE_HALF_OPEN,
    IKE_HALF_OPEN_OF_ONE,
    IKE_HALF_OPEN_S,
    IKE_UNPROVEN,
)
from limpet.base.ownership import IPSEC_IFNAME, IPSEC_RULE_PRIORITY, IPSEC_TABLE, TUNNEL_MARK
from limpet.cluster.keys import uid_of
from limpet.datapath.tunnel.ipsec.state import IPSEC_IF_ID, ChildSa, IkeSa, IpsecPeer
from limpet.datapath.tunnel.key import tunnel_public_key
from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink import route_codec

Document = Mapping[str, Any]
"""Sections, lists of bytes, bytes."""

_RULE = struct.Struct("=BBBBBBBBI")

_PLUGINS = (
    *("random", "nonce", "openssl", "pem", "pkcs1", "pkcs8", "x509", "pubkey", "constraints"),
    *("kdf", "drbg", "kernel-netlink", "socket-default", "vici"),
)
_OWN_ESP = "kernel-libipsec"
"""Makes ESP if it is loaded before kernel-netlink, which has the kernel make it."""
_NEEDED = ("openssl", "kernel-netlink", "socket-default", "vici")
"""Plugins that some distributions have in packages of their own."""
WHOLE = "all"
"""Name of the child with every prefix of the peer, which the peer may initiate, too."""
MORE = "more"
_NAME = re.compile(r"limpet-([0-9a-f]{64})-(\d{1,9})")
_IKE_PROPOSAL = "aes128gcm16-prfsha256-curve25519"
_ESP_PROPOSAL = "aes128gcm16-curve25519"
_IKE_REKEY_S = 4 * 3600
_ANYWHERE = ("0.0.0.0/0", "::/0")


def needed_plugins(*, in_kernel: bool) -> tuple[str, ...]:
    """Plugins that the daemon must have loaded."""
    return _NEEDED if in_kernel else (*_NEEDED, _OWN_ESP)


def daemon_settings(
    folder: str, *, port: int, mark: int, bridge: str, in_kernel: bool = False
) -> str:
    """The text of the daemon's strongswan.conf; its socket and its log are in `folder`.

    `bridge`: of the pods, whose addresses the daemon must not use. `in_kernel`: the kernel makes
    ESP.
    """
    return f"""\
charon-systemd {{
  # No CA is trusted: each peer's connection has the key of its grant. A daemon of before ends.
  load = {" ".join(_PLUGINS if in_kernel else (_OWN_ESP, *_PLUGINS))}
  # Every packet goes by the one port, which has ESP in it too.
  port = 0
  port_nat_t = {port}
  # What it sends is marked, and so kept out of our routing table; its own table is never reached.
  routing_table = {IPSEC_TABLE}
  routing_table_prio = {IPSEC_RULE_PRIORITY}
  install_virtual_ip = no
{_OF_KERNEL if in_kernel else ""}\
  interfaces_ignore = {bridge}, {IPSEC_IFNAME}
  # Never the first bytes of a probe or of WireGuard, which may share the port.
  spi_min = 0xc0000000
  spi_max = 0xcfffffff
  # 16 s until a peer that does not answer is given up.
  retransmit_timeout = 0.5
  retransmit_base = 1.5
  retransmit_tries = 6
  block_threshold = {IKE_HALF_OPEN_OF_ONE.most}
  cookie_threshold = {IKE_UNPROVEN.most}
  init_limit_half_open = {IKE_HALF_OPEN.most}
  half_open_timeout = {IKE_HALF_OPEN_S.most}
  plugins {{
    vici {{
      socket = unix://{folder}/vici.sock
    }}
    socket-default {{
      fwmark = {mark:#x}
    }}
    kernel-netlink {{
      fwmark = !{mark:#x}
      # The kernel's own value; the daemon would write another one.
      xfrm_acq_expires = 30
    }}
    kernel-libipsec {{
      load = {"no" if in_kernel else "yes"}
    }}
  }}
  journal {{
    default = -1
  }}
  filelog {{
    limpet {{
      path = {folder}/charon.log
      default = 0
      cfg = 1
      knl = 1
      lib = 1
      flush_line = yes
      time_format = %b %e %T
    }}
  }}
}}
"""


_OF_KERNEL = """\
  # The device's routes are ours.
  install_routes = no
  # Packets of one flow may come by several CPUs and change their order there.
  replay_window = 1024
"""


def delete_rule_of_daemon(version: int) -> netlink.Request:
    """Deletes the daemon's rule, which a daemon that was killed leaves, whatever its mark."""
    family = netlink.AF_INET if version == 4 else netlink.AF_INET6
    body = _RULE.pack(family, 0, 0, 0, 0, 0, 0, route_codec.FR_ACT_TO_TBL, 0)
    body += netlink.attr_u32(route_codec.FRA_PRIORITY, IPSEC_RULE_PRIORITY)
    body += netlink.attr_u32(route_codec.FRA_TABLE, IPSEC_TABLE)
    about = ("rule", IPSEC_RULE_PRIORITY, f"(IPv{version})")
    return netlink.Request(netlink.RTM_DELRULE, 0, body, about, (errno.ENOENT,))


def parse_version(answer: Document) -> tuple[int, ...]:
    """`(5, 9, 8)`. Raises: ValueError."""
    with _misread_is_a_value_error():
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", _text(answer.get("version", b"")))
    if found is None:
        raise ValueError(f"no version in {dict(answer)!r}")
    return tuple(int(part) for part in found.groups() if part is not None)


def connection_name(identity_key: bytes, generation: int) -> str:
    return f"limpet-{identity_key.hex()}-{generation}"


def parse_name(name: str) -> tuple[bytes, int] | None:
    """Identity's key of the peer and generation, of a connection's name; None: it is not ours."""
    found = _NAME.fullmatch(name)
    return (bytes.fromhex(found[1]), int(found[2])) if found is not None else None


def connection(
    peer: IpsecPeer,
    *,
    own_uid: str,
    port: int,
    more: Iterable[Prefix] = (),
    in_kernel: bool = False,
) -> dict[str, Any]:
    """A message for `load-conn`.

    Each end names the other's prefixes only; its own are what the other lets in. `more`: prefixes
    of a further child. `in_kernel`: the kernel makes ESP.
    """
    esp = _IN_KERNEL if in_kernel else {}
    children = {WHOLE: _child(peer.allowed) | esp}
    if more:
        children[MORE] = _child(more) | esp
    conn: dict[str, Any] = {
        "version": "2",
        "local_addrs": ["%any"],
        "remote_addrs": ["%any"],
        "local_port": str(port),
        "proposals": [_IKE_PROPOSAL],
        "encap": "yes",
        "mobike": "yes",
        "dpd_delay": "30s",
        "keyingtries": "1",
        # A second more for each generation: the daemon would take an SA of an equal connection for
        # one of this, wherever that SA leads by now.
        "rekey_time": f"{_IKE_REKEY_S + peer.generation % 3600}s",
        "unique": "no",
        "send_cert": "always",
        "local": {"auth": "pubkey", "id": f"fqdn:{own_uid}"},
        # Whatever certificate the peer shows, and whoever made it.
        "remote": {
            "auth": "pubkey",
            "id": f"fqdn:{uid_of(peer.identity_key)}",
            "pubkeys": [_SUBJECT_PUBLIC_KEY_INFO + peer.identity_key],
        },
        "children": children,
    }
    if peer.endpoint is not None:
        address, remote_port = peer.endpoint
        conn |= {"remote_addrs": [str(address), "%any"], "remote_port": str(remote_port)}
    return {connection_name(peer.identity_key, peer.generation): conn}


_SUBJECT_PUBLIC_KEY_INFO = bytes.fromhex("302a300506032b6570032100")
"""DER before an Ed25519 public key. Source: RFC 8410 section 10.1."""

_IN_KERNEL = {
    "if_id_in": str(IPSEC_IF_ID),
    "if_id_out": str(IPSEC_IF_ID),
    # As what the daemon itself sends: kept out of our routing table.
    "set_mark_out": str(TUNNEL_MARK),
}
"""Binds children to the xfrm interface."""


def _child(remote: Iterable[Prefix]) -> dict[str, Any]:
    return {
        "local_ts": list(_ANYWHERE),
        "remote_ts": sorted(map(str, remote)),
        "esp_proposals": [_ESP_PROPOSAL],
        "mode": "tunnel",
        "rekey_time": "1h",
        "start_action": "none",
        "close_action": "none",
        "dpd_action": "clear",
    }


def parse_connections(events: Iterable[Document]) -> list[IpsecPeer]:
    """Our connections in a `list-conns` answer, without endpoints. Raises: ValueError."""
    with _misread_is_a_value_error():
        return [
            _peer(conn, known)
            for event in events
            for name, conn in event.items()
            if (known := parse_name(name)) is not None
        ]


def _peer(conn: Document, known: tuple[bytes, int]) -> IpsecPeer:
    identity_key, generation = known
    allowed = _prefixes(conn.get("children", {}).get(WHOLE, {}).get("remote-ts", []))
    return IpsecPeer(tunnel_public_key(identity_key), identity_key, allowed, None, generation)


@contextmanager
def _misread_is_a_value_error() -> Iterator[None]:
    """Raises ValueError where a section stands in place of a value, or the other way round."""
    try:
        yield
    except (AttributeError, TypeError, LookupError) as error:
        raise ValueError(f"a document of another shape: {error}") from error


def parse_sas(events: Iterable[Document]) -> list[IkeSa]:
    """Our SAs in a `list-sas` answer. Raises: ValueError."""
    with _misread_is_a_value_error():
        return [
            _ike_sa(sa, known)
            for event in events
            for name, sa in event.items()
            if (known := parse_name(name)) is not None and _text(sa.get("state", b"")) in _STATES
        ]


_STATES = {"CONNECTING": False, "ESTABLISHED": True, "REKEYING": True}
"""Whether an IKE_SA in that state carries packets; in any other state it is about to go."""


def _ike_sa(sa: Document, known: tuple[bytes, int]) -> IkeSa:
    identity_key, generation = known
    children = [
        _child_sa(child)
        for child in sa.get("child-sas", {}).values()
        if _text(child["state"]) in ("INSTALLED", "UPDATING", "REKEYING", "REKEYED")
    ]
    return IkeSa(
        uniqueid=_number(sa, "uniqueid"),
        public_key=tunnel_public_key(identity_key),
        generation=generation,
        established=_STATES[_text(sa["state"])],
        initiator=_text(sa.get("initiator", b"")) == "yes",
        remote=_endpoint(sa),
        spi=_text(sa.get("initiator-spi", b"")),
        age_s=_number(sa, "established"),
        children=tuple(sorted(children, key=lambda child: child.uniqueid)),
    )


def _child_sa(child: Document) -> ChildSa:
    return ChildSa(
        _number(child, "uniqueid"),
        _prefixes(child.get("local-ts", [])),
        _prefixes(child.get("remote-ts", [])),
        _number(child, "bytes-in"),
        _number(child, "bytes-out"),
    )


def _endpoint(sa: Document) -> Endpoint:
    address = _text(sa.get("remote-host", b"")).partition("%")[0]
    # An SA that is just being made may know none.
    return ip_address("0.0.0.0" if address in ("", "%any") else address), _number(sa, "remote-port")


def _prefixes(texts: Iterable[bytes]) -> frozenset[Prefix]:
    return frozenset(ip_network(_text(text)) for text in texts)


def _number(section: Document, name: str) -> int:
    return int(section.get(name, b"0"))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
