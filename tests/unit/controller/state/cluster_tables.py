"""Tables with a cluster in them, and nodes that join it without a network between."""

from __future__ import annotations

import secrets
from ipaddress import ip_network

import msgspec

from limpet.cluster.api import JoinRequest, Token, format_token, join_proof, secret_digest
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.controller.registry.records import TOKEN, TokenRecord, record_types
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants
from limpet.controller.state.authority import create_cluster, digest_of
from tests.unit.cluster_values import node_key


def network(*pod_cidrs: str, **changes: object) -> Network:
    values = {
        "cluster": "test",
        "generation": 0,
        "revision": 0,
        "keys": (),
        "pod_cidrs": tuple(map(ip_network, pod_cidrs)) or (ip_network("10.244.0.0/16"),),
        **changes,
    }
    return Network(**values)  # type: ignore[arg-type]


def new_tables(*pod_cidrs: str, quarantine_s: float = 0.0, **changes: object) -> Tables:
    tables = Tables(quarantine_s)
    create_cluster(tables, network(*pod_cidrs, **changes))
    tables.commit()
    return tables


def new_token(tables: Tables) -> str:
    token = Token(secrets.token_hex(5), secrets.token_bytes(20), digest_of(tables.authority))
    record = TokenRecord(secret_digest(token.secret), 0.0, 1e9, ("edge",), (), {})
    tables.put(TOKEN, token.id, record)
    return format_token(token)


def join(tables: Tables, number: int, name: str, now_s: float = 0.0) -> Grant:
    """Of the node with that number's key. Raises: RefusedError."""
    return join_with(tables, new_token(tables), number, name, now_s)


def join_with(tables: Tables, token: str, number: int, name: str, now_s: float = 0.0) -> Grant:
    """As `join`, with this token."""
    key = node_key(number)
    request = JoinRequest(token, name, public_key_of(key), join_proof(token, name, key))
    joined = grants.join(tables, request, digest_of(tables.authority), now_s)
    return tables.grants[joined.uid]


def copy(tables: Tables, quarantine_s: float = 0.0) -> Tables:
    """As if written to a store and read again."""
    copied = Tables(quarantine_s)
    for kind, of in record_types().items():
        for name, record in records(tables, kind).items():
            copied.load(kind, name, msgspec.json.encode(record), of)
    copied.commit()
    return copied


def records(tables: Tables, kind: str) -> dict[str, object]:
    return dict(tables._records[kind])
