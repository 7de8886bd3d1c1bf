"""All of the store read into tables, and what was known before kept where the store has lost it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import structlog

from limpet.base.errors import StorageError
from limpet.cluster.documents import Key, Known
from limpet.cluster.keys import SealError, public_key_of
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.network import signing_keys
from limpet.cluster.seal import check, is_signed_by, read_sealed
from limpet.controller.registry.records import AUTHORITY, COMMUNITY, TOKEN, record_types
from limpet.controller.registry.tables import Tables, is_under
from limpet.controller.store.interface import Store

_log = structlog.get_logger("registry")
LOST_SECRETS = (
    "put a back-up of the Secret limpet-authority in its place: nodes know only what its keys have "
    "signed. To begin anew without one, so that every node has to join again: kubectl delete "
    "nodegrants,nodepresences,clusternetworks --all, and the ConfigMaps of Limpet's namespace"
)


async def read_all(store: Store, tables: Tables) -> tuple[dict[Key, str], dict[Key, str]]:
    """The version of each item, and why nobody can read some, or nobody that may has signed them.

    Raises: StorageError where the cluster's secrets cannot be read; all else can be made again, or
    comes from the nodes.
    """
    versions: dict[Key, str] = {}
    unreadable: dict[Key, str] = {}
    ours = {kind.name for kind in KINDS.of_the_cluster()}
    for kind, of in record_types().items():
        listing = await store.listing(kind)
        unreadable.update(((kind, name), why) for name, why in listing.unreadable if name)
        keys = _keys(tables) if kind in ours and tables.exists else None
        for item in listing.items:
            versions[kind, item.name] = item.version
            try:
                tables.load(kind, item.name, item.value, of)
                tables.check_if_under(kind, item.name)
                if keys is not None:
                    _check_ours(tables, (kind, item.name), keys)
            except (StorageError, SealError) as error:
                tables.put(kind, item.name, None)
                unreadable[kind, item.name] = str(error)
        for key, why in unreadable.items():
            if key[0] == AUTHORITY:
                raise StorageError("read", "the cluster's secrets", why, hint=LOST_SECRETS)
    tables.commit()
    return versions, unreadable


def _keys(tables: Tables) -> tuple[bytes, ...]:
    """All that the cluster has signed with, the newest first: a rotation that was cut off has left
    what a former one has signed. Of a network of somebody else none count."""
    keys = [public_key_of(each) for each in tables.authority.cluster_keys]
    network = tables.find((NETWORK.name, NETWORK.name))
    if network is not None:
        with contextlib.suppress(SealError):
            check(network, Known(KINDS, tables.pinned))
            keys += signing_keys(tables)
    return tuple(reversed(dict.fromkeys(keys)))


def _check_ours(tables: Tables, key: Key, keys: Collection[bytes]) -> None:
    """Raises: SealError."""
    document = tables.find(key)
    if document is not None and not is_signed_by(document.sealed, KINDS, keys):
        raise SealError(
            f"open {' '.join(key)}: no key of this cluster has signed it (it was put here from "
            "another cluster, or forged: delete it)"
        )


def keep_known(
    before: Tables, tables: Tables, unreadable: Collection[Key], gone: dict[Key, Any]
) -> bool:
    """What was known is put into what was read, and is written with the next commit. `gone`: what
    is to be written where it is not there; what nobody can read is put into it. True: the store as
    a whole is of before."""
    for kind, name in unreadable:
        if (record := before.record(kind, name)) is not None:
            gone[kind, name] = record
        elif tables.is_under_removed(kind, name):
            tables.put(kind, name, None)
    for (kind, name), record in gone.items():
        if tables.record(kind, name) is None or _is_later(tables, (kind, name), record):
            tables.put(kind, name, record)
    is_behind = before.exists and _is_behind(before, tables)
    if is_behind:
        _log.error("the store was put back, or its state taken away: what is known is written")
        for kind in record_types():
            if kind != COMMUNITY and not is_under(kind):
                for name, record in before.records(kind).items():
                    if tables.record(kind, name) != record:
                        tables.put(kind, name, record)
    for name, token in before.tokens.items():
        found = tables.tokens.get(name)
        if found is not None and token.lets_in_less_than(found):
            _log.warning("put back by hand, written again", kind=TOKEN, name=name)
            tables.put(TOKEN, name, token)
    return is_behind


def _is_later(tables: Tables, key: Key, record: Any) -> bool:
    """Whether it holds a document that is newer than the one that was read."""
    found = tables.find(key)
    return found is not None and read_sealed(record.sealed, KINDS).is_newer(found)


def _is_behind(before: Tables, tables: Tables) -> bool:
    """What lies in the store is older than what was written there."""
    is_there = tables.exists and tables.has_state and tables.has_network
    return not is_there or tables.state.revision < before.state.revision
