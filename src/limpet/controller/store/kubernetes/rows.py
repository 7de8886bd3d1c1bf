"""Items of the store <-> objects of the API server, a row for each kind. Pure.

What people look at is a custom resource; what is secret is a Secret; the rest are ConfigMaps.
"""

from __future__ import annotations

from limpet.cluster.kinds import NETWORK
from limpet.controller.registry.records import AUTHORITY, COMMUNITY, NODE, PRESENCE, TOKEN
from limpet.controller.store.kubernetes.community_row import CommunityRow
from limpet.controller.store.kubernetes.document_row import DocumentRow
from limpet.controller.store.kubernetes.items import Row
from limpet.controller.store.kubernetes.plain_row import PlainRow


def row_of(kind: str) -> Row:
    """What is in no table is a ConfigMap."""
    return _ROWS.get(kind) or PlainRow(kind)


_ROWS: dict[str, Row] = {
    NETWORK.name: DocumentRow(NETWORK.name),
    NODE: DocumentRow(NODE),
    PRESENCE: DocumentRow(PRESENCE),
    COMMUNITY: CommunityRow(),
    AUTHORITY: PlainRow(AUTHORITY, secret=True),
    TOKEN: PlainRow(TOKEN, secret=True),
}
