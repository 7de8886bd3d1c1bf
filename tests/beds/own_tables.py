"""Whether this kernel keeps others away from the tables of policies."""

from __future__ import annotations

from contextlib import closing
from functools import cache

from limpet.base.ownership import NFT_POLICY_TRIAL_TABLE
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT, TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables


@cache
def others_can_delete() -> bool:
    """Before Linux 6.9. Nothing comes of asking."""
    with closing(NftablesSocket()) as netlink:
        trial = TableId("inet", NFT_POLICY_TRIAL_TABLE)
        return not OwnTables(netlink).can(OWNED | PERSISTENT, trial)
