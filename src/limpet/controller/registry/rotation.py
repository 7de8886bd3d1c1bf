"""The cluster's signing keys, one after the other: each revokes those before and signs all anew.

Operations on the tables; none does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import structlog
from msgspec.structs import replace as replace_fields

from limpet.base.bounds.signers import FORGED_BURIED, MAX_ERA, MAX_SHOWN_VERSION
from limpet.cluster.api import Code
from limpet.cluster.documents import Document
from limpet.cluster.keys import ClusterKey, SealError, endorse, public_key_of
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.network import signing_keys
from limpet.cluster.seal import is_signed_by
from limpet.controller.registry.records import AUTHORITY, STATE, AuthorityRecord, record_of
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables

_log = structlog.get_logger("cluster")


def chain_of(authority: AuthorityRecord) -> tuple[ClusterKey, ...]:
    """All keys of the cluster as its network names them: made of what is secret alone, since a
    network that was shown may be a thief's."""
    private = authority.cluster_keys
    endorsed = (endorse(public_key_of(key), before) for before, key in pairwise(private))
    return (ClusterKey(public_key_of(private[0])), *endorsed)


def has_signing_key(tables: Tables) -> bool:
    """False: the back-up that was restored is of before the last rotation."""
    return public_key_of(tables.authority.cluster_keys[-1]) == signing_keys(tables)[-1]


def rotate_key(tables: Tables, private_key: bytes, *, force: bool = False) -> int:
    """Signs with a new key from now on, and everything anew: nodes that have heard of it take
    nothing new that a former key has signed. Returns how many documents. Raises: RefusedError.

    `force`: also in a recovery, which is over then: whoever has the former key can begin another
    again and again, by documents that it shows. What is held back stays so.
    """
    if force:
        tables.put(STATE, STATE, replace_fields(tables.state, recovery=None))
    if tables.authority.cluster_keys[-1] == private_key:
        # Another wrote in the midst: the key was written before, and the rest is made again.
        finish_rotation(tables)
        return sum(1 for _ in _of_the_cluster(tables))
    if tables.state.recovery is not None:
        raise RefusedError(
            Code.BAD_REQUEST,
            "rotate the cluster key: this controller was restored, and does not know all that was "
            "granted and removed since. What it signed with a new key would count before that: "
            "removed nodes would be members again, and nodes that have joined since would be "
            "removed. Wait until every node has reported (limpet controller recovery says which is "
            "missing; remove one that is gone for good). If nothing was restored, somebody has "
            "shown what this controller never signed, and has the key: end the recovery and rotate "
            "in one (limpet controller rotate-key --force)",
        )
    authority = tables.authority
    if len(authority.cluster_keys) > MAX_ERA.most:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"rotate the cluster key: it was rotated {MAX_ERA.most} times already, and no node "
            "takes a longer row of keys (begin the cluster anew)",
        )
    following = replace_fields(
        authority,
        cluster_keys=(*authority.cluster_keys, private_key),
        rotated_at=(*authority.rotated_at, tables.next_revision()),
    )
    return take_keys(tables, following)


def take_keys(tables: Tables, authority: AuthorityRecord) -> int:
    """Signs with the last of these keys, and everything anew. Returns how many documents."""
    tables.put(AUTHORITY, AUTHORITY, authority)
    network = tables.network
    tables.sign(
        NETWORK,
        replace(
            network,
            generation=_following(network.generation),
            revision=tables.state.revision,
            keys=chain_of(authority),
            rotated_at=authority.rotated_at,
        ),
    )
    return sum(_sign_again(tables, document) for document in list(_of_the_cluster(tables)))


def finish_rotation(tables: Tables) -> int:
    """What a rotation that was cut off has left: nodes are told the last key, and everything that
    a former one has signed is signed anew. Returns how many documents."""
    ours, named = chain_of(tables.authority), tables.network.keys
    if len(ours) > len(named) and ours[: len(named)] == named:
        return 1 + take_keys(tables, tables.authority)
    if not has_signing_key(tables):
        return 0
    left = [each for each in _of_the_cluster(tables) if _is_of_a_former_key(tables, each)]
    return sum(_sign_again(tables, document) for document in left)


def _is_of_a_former_key(tables: Tables, document: Document) -> bool:
    if not KINDS[document.kind].under:
        return document.era < tables.era
    return is_signed_by(document.sealed, KINDS, signing_keys(tables)[:-1])


def _of_the_cluster(tables: Tables) -> Iterator[Document]:
    """What it has signed itself, besides the network; last what stands under others."""
    for kind in sorted(KINDS, key=lambda each: bool(each.under)):
        if kind.by_cluster is None:
            continue
        for name in list(tables.records(kind.name)):
            document = tables.find((kind.name, name))
            if document is not None and kind.by_cluster.signs(document.value, tables):
                yield document


def _sign_again(tables: Tables, document: Document) -> bool:
    kind = KINDS[document.kind]
    assert kind.by_cluster is not None
    version = _following(document.version)
    renewed = kind.by_cluster.renewed(document.value, version, tables.next_revision)
    tables.sign(kind, renewed)
    return True


def _following(version: int) -> int:
    """Whoever had the former key may have used the versions up; those of the next begin below."""
    return version + 1 if version < MAX_SHOWN_VERSION.most else 1


# What nodes show that a former key has signed


def check_counts(document: Document) -> None:
    """Raises: SealError for a version that leaves no room above it."""
    if max(document.version, document.revision) > MAX_SHOWN_VERSION.most:
        raise SealError(
            f"take up {document.kind} {document.name}: its version {document.version} or revision "
            f"{document.revision} is none that a controller comes to: a thief's?"
        )


def is_former(tables: Tables, document: Document) -> bool:
    """It is of before the last rotation: all that counted then was signed anew."""
    return document.era < tables.era and not KINDS[document.kind].under


def may_be_lost(tables: Tables, document: Document) -> bool:
    """A former key signed it while it was the cluster's, after the back-up that this controller was
    restored from: the cluster may have granted it. So may a thief of that key."""
    recovery, rotated_at = tables.state.recovery, tables.authority.rotated_at
    if recovery is None or document.era >= len(rotated_at):
        return False
    if not recovery.above < document.revision <= rotated_at[document.era]:
        return False
    signer = signing_keys(tables)[document.era : document.era + 1]
    return is_signed_by(document.sealed, KINDS, signer)


def bury_forged(tables: Tables, document: Document, now_s: float) -> bool:
    """Nodes hold it until something newer replaces it; where nobody here knows of it, whoever
    stole the key made it, and it is replaced by a tombstone. Whether that was done."""
    kind = KINDS[document.kind]
    if kind.by_cluster is None or kind.by_cluster.withdrawn is None:
        return False
    if tables.find(document.key) is not None:
        return False
    if not is_signed_by(document.sealed, KINDS, signing_keys(tables)[:-1]):
        return False
    buried = sum(1 for each in tables.grants.values() if each.tombstone and each.name == each.uid)
    if buried >= FORGED_BURIED.most:
        _log.error("a thief's documents are too many to be withdrawn", most=FORGED_BURIED.most)
        return False
    _log.error(
        "a former key of the cluster has signed what was never granted: it is withdrawn",
        kind=document.kind,
        name=document.name,
    )
    withdrawal = kind.by_cluster.withdrawn(document.value, tables.next_revision())
    tables.sign(kind, withdrawal, record_of(document, now_s))
    return True
