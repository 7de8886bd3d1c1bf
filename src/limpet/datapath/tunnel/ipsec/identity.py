"""Who this node is in IKE."""

from __future__ import annotations

from limpet.base.errors import StorageError
from limpet.cluster.identity import Identity
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity


def ipsec_identity(identity: Identity) -> IpsecIdentity:
    """Read from the files of its identity. Raises: StorageError."""
    paths = (identity.key_path, identity.certificate_path, identity.ca_path)
    try:
        return IpsecIdentity(identity.uid, *(path.read_bytes() for path in paths))
    except OSError as error:
        why = f"{error.strerror or error}: without it there are no IPsec tunnels"
        raise StorageError("read", error.filename, why) from error
