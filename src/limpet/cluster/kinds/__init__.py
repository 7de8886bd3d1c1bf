"""The kinds of documents that a cluster has, a file for each, and the registry of them all.

Add a new kind as a `Kind` in a file here, and its name in `KINDS`. Imports nothing of `cluster` but
`documents` and `keys`: what keeps, sends or merges documents knows no kind.
"""

from limpet.cluster.documents import Kinds
from limpet.cluster.kinds.absence import ABSENCE
from limpet.cluster.kinds.grant import GRANT
from limpet.cluster.kinds.network import NETWORK
from limpet.cluster.kinds.pods import PODS
from limpet.cluster.kinds.policy import POLICY
from limpet.cluster.kinds.presence import PRESENCE

__all__ = ["ABSENCE", "GRANT", "KINDS", "NETWORK", "PODS", "POLICY", "PRESENCE"]

KINDS = Kinds((NETWORK, GRANT, PRESENCE, ABSENCE, POLICY, PODS))
