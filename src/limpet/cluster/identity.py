"""Who this node is in its cluster, on its disk: key, certificate, pinned key, controllers."""

from __future__ import annotations

import base64
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.disk import cause, put_aside, read_regular, write_durably
from limpet.base.errors import ConfigError, StorageError
from limpet.cluster.keys import public_key_of, uid_of

_KEY_FILE, _CLUSTER_FILE = "node.key", "cluster.json"
_CERTIFICATE_FILE, _CA_FILE = "node.pem", "ca.pem"
KEY_BYTES = 32
_DER_SEQUENCE = b"\x30"
_SO_NETNS_COOKIE = 71
"""Source: include/uapi/asm-generic/socket.h."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A node that has joined."""

    folder: Path
    private_key: bytes
    """Ed25519, 32 bytes."""
    name: str
    pinned_key: bytes
    """The cluster's first signing key; all others follow from it."""
    controllers: tuple[str, ...]
    """`host:port` of each."""
    by_account: bool = False
    """Let in by the account of the agent's pod: the API server says where the controllers are."""

    @property
    def public_key(self) -> bytes:
        return public_key_of(self.private_key)

    @property
    def uid(self) -> str:
        return uid_of(self.public_key)

    @property
    def certificate_path(self) -> Path:
        return self.folder / _CERTIFICATE_FILE

    @property
    def ca_path(self) -> Path:
        return self.folder / _CA_FILE

    @property
    def key_path(self) -> Path:
        """PEM, as OpenSSL takes it."""
        return self.folder / "node.key.pem"


VERSION = 1
"""Version of the format of `cluster.json`."""


class ClusterFile(msgspec.Struct, frozen=True):
    """What `limpet join` writes last: while it is missing, the node has not joined."""

    name: str
    pinned_key: bytes
    controllers: tuple[str, ...]
    version: int = VERSION
    by_account: bool = False


class DamagedClusterFile(ConfigError):
    """`cluster.json` is damaged, and the node's key is whole."""


class _Versioned(msgspec.Struct):
    version: int = VERSION


def load_identity(folder: Path) -> Identity | None:
    """None: the node has not joined. Raises: StorageError; ConfigError, DamagedClusterFile: what is
    damaged."""
    try:
        text = read_regular(folder / _CLUSTER_FILE)
        key = read_regular(folder / _KEY_FILE)
    except FileNotFoundError as error:
        if Path(error.filename).name == _CLUSTER_FILE:
            return None
        raise _damaged(folder / _KEY_FILE, "it is missing") from error
    except OSError as error:
        raise StorageError("read", error.filename, cause(error)) from error
    try:
        version = decode_json(text, _Versioned).version
        if version > VERSION:
            raise ConfigError(
                f"read {folder / _CLUSTER_FILE}: it has format {version}, this Limpet knows "
                f"{VERSION} (install the later Limpet again; the file was left alone)"
            )
        found = decode_json(text, ClusterFile)
    except msgspec.MsgspecError as error:
        if len(key) != KEY_BYTES or _is_rotten(folder, key):
            raise _damaged(folder / _CLUSTER_FILE, str(error)) from error
        raise DamagedClusterFile(
            f"read {folder / _CLUSTER_FILE}: {error} (it was damaged; this node's key is whole: "
            "remove the file and join again, which gives the same key the same place: limpet join "
            "--token-file FILE)"
        ) from error
    if len(key) != KEY_BYTES:
        raise _damaged(folder / _KEY_FILE, f"{len(key)} bytes instead of {KEY_BYTES}")
    if _is_rotten(folder, key):
        raise _damaged(folder / _KEY_FILE, f"it is not the key of {_CERTIFICATE_FILE}")
    return Identity(folder, key, found.name, found.pinned_key, found.controllers, found.by_account)


def _is_rotten(folder: Path, key: bytes) -> bool:
    """A key of the right size that is another one than was made here, as by the certificate."""
    if not any(key):
        return True
    try:
        text = read_regular(folder / _CERTIFICATE_FILE)
        certificate = base64.b64decode(b"".join(text.splitlines()[1:-1]), validate=True)
    except (OSError, ValueError):
        return False  # who connects with it says what is wrong
    return certificate[:1] == _DER_SEQUENCE and public_key_of(key) not in certificate


def put_damage_aside(folder: Path) -> str:
    """Where the file that says who the node is was damaged, and its key is whole, the node has not
    joined: it may do so again. What became of the file, in words, or nothing. Raises: LimpetError:
    what else is damaged."""
    try:
        load_identity(folder)
    except DamagedClusterFile as error:
        return f"{error}: {put_aside(folder / _CLUSTER_FILE)}"
    return ""


def keep_controllers(identity: Identity, controllers: tuple[str, ...]) -> None:
    """Asks these from now on, also after a restart. Raises: StorageError."""
    document = ClusterFile(
        identity.name, identity.pinned_key, controllers, by_account=identity.by_account
    )
    write_durably(identity.folder / _CLUSTER_FILE, msgspec.json.encode(document))


def _damaged(path: Path, cause: str) -> ConfigError:
    return ConfigError(
        f"read {path}: {cause} (this node's identity is damaged; put the folder back from a "
        "back-up, or let new hardware take its place: `limpet node replace` in the cloud, then "
        "`limpet join --new-identity` here)"
    )


def boot_id() -> str:
    """Id of this boot of the node's kernel; nodes in namespaces on one kernel have their own.

    No two namespaces have the same one, also when the first is gone; before Linux 5.14 they may.
    """
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{kernel}-{_namespace_number():x}"


def _namespace_number() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anything:
        try:
            cookie = anything.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
        except OSError:  # before Linux 5.14; the number of an inode is given to others later
            return os.stat("/proc/self/ns/net").st_ino
    return int.from_bytes(cookie, sys.byteorder)
