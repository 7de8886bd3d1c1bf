"""Tables of nftables in netlink messages: which there are, and whose.

A table may belong to a socket: then no other one can change or delete it, and whoever flushes the
ruleset passes it over. One that persists outlives its socket, is nobody's then, and the next one
may take it.

Source: include/uapi/linux/netfilter/nf_tables.h; nf_tables_newtable, nf_tables_updtable,
nft_table_lookup, nft_flush and nft_rcv_nl_event in net/netfilter/nf_tables_api.c.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from limpet.linux.netlink.codec import Message, Request, attr, attr_text, parse_attrs, text
from limpet.linux.netlink.set_codec import BRIDGE, INET

OWNED, PERSISTENT = 2, 4
"""NFT_TABLE_F_OWNER, from Linux 5.12 on; NFT_TABLE_F_PERSIST, from 6.9 on."""
_NEW, _GET, _DELETE = (10 << 8 | each for each in (0, 1, 2))
_NAME, _FLAGS, _OWNER = 1, 2, 7
_DUMP, _CREATE = 0x300, 0x400
_FAMILIES = {"inet": INET, "bridge": BRIDGE}
_WORDS = {number: word for word, number in _FAMILIES.items()}


class TableId(NamedTuple):
    family: str
    name: str


class TableInfo(NamedTuple):
    table: TableId
    """Its family is empty where it is neither inet nor bridge."""
    owner: int
    """Number of the socket whose it is; 0: nobody's."""


def dump_tables() -> Request:
    return Request(_GET, _DUMP, bytes(4), ("tables of nftables",))


def parse_table(message: Message) -> TableInfo:
    attrs = parse_attrs(message.body, 4)
    family = _WORDS.get(message.body[0], "") if len(message.body) else ""
    owner = int.from_bytes(attrs.get(_OWNER, b""), "big")
    return TableInfo(TableId(family, text(attrs.get(_NAME))), owner)


def new_table(table: TableId, flags: int | None = None) -> Request:
    """It is there; with these flags, or whatever it has. EOPNOTSUPP: it has others that cannot
    become these, or the kernel does not know them. EPERM: it belongs to another socket."""
    body = _body(table)
    if flags is not None:
        body += attr(_FLAGS, struct.pack(">I", flags))
    return Request(_NEW, _CREATE, body, _about(table))


def delete_table(table: TableId) -> Request:
    """ENOENT: it is not there."""
    return Request(_DELETE, 0, _body(table), _about(table))


def _body(table: TableId) -> bytes:
    return struct.pack(">BBH", _FAMILIES[table.family], 0, 0) + attr_text(_NAME, table.name)


def _about(table: TableId) -> tuple[object, ...]:
    return ("nftables table", *table)
