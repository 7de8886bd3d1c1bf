"""How a node gets into a cluster: its key, a token, and what the controller answers, on the disk.

The token is one that a person made, or that of the service account of the agent's pod.

Every step may be the last before the power goes: whoever runs it again goes on with the same key,
and the controller gives the same key the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from limpet.base.addresses import Prefix
from limpet.base.decoding import decode_json
from limpet.base.disk import Disk, read_if_there, refusals, remove_durably, write_durably
from limpet.base.errors import ConfigError, LimpetError, StorageError
from limpet.base.http.connection import LinkError
from limpet.base.records.version import VERSION, check_version
from limpet.base.settings import Folders
from limpet.cloud.https import parse_controller
from limpet.cloud.join_requests import JoinOrder, OwnRequests, ask_each
from limpet.cloud.link import ControllerLink
from limpet.cloud.pod_reports import keep_bindings
from limpet.cluster.api import (
    InterfaceAddresses,
    JoinAnswer,
    JoinBy,
    WatchKind,
    name_problem,
    parse_token,
)
from limpet.cluster.documents import Known, Sealed
from limpet.cluster.identity import (
    KEY_BYTES,
    ClusterFile,
    Identity,
    load_identity,
)
from limpet.cluster.keys import SealError, public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network, signing_keys
from limpet.cluster.merge import merge
from limpet.cluster.seal import check, open_sealed, read_sealed
from limpet.cluster.segments import overlaps_with
from limpet.cluster.snapshot import completeness
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.datapath.overlay.vtep import VTEP_FILE, adopt_vtep_macs

_FOR_ALL_NODES_S = 60.0
"""For all that the cluster has to say; what takes longer the agent hears later."""
WAITING_PODS = "pods-to-keep.json"
"""In the cluster's folder: pods of the machine that this one replaces, not in the records yet."""


class WaitingPods(msgspec.Struct, frozen=True):
    """The file of that name."""

    version: int
    pods: tuple[InterfaceAddresses, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    name: str
    uid: str
    cluster: str
    segments: tuple[Prefix, ...]
    kept_pods: int
    """Pods of the machine that this one replaces, whose addresses are kept."""


def join(
    folders: Folders, order: JoinOrder, lan: Collection[Prefix], *, has_ipv6: bool = True
) -> Joined:
    """Makes this node one of the cluster that the token is of; all of it is on the disk then.

    `lan`: prefixes of the node's own links; `has_ipv6`: the kernel does. Raises: LimpetError; then
    the node has not joined, and the same order may be given again.
    """
    _check(order)
    target = folders.cluster_dir
    folder = target.with_name(f"{target.name}.anew") if order.as_new else target
    with only_join(folders.state_dir):
        identity = None if order.as_new else load_identity(target)
        if identity is not None:
            raise LimpetError(
                f"join: this node has joined already, as {identity.name} (uid {identity.uid}); to "
                "make it another node of this or another cluster: stop the agent, then "
                "`limpet join --new-identity` with a new token; to have it ask its cluster's "
                "controller at another address: limpet join --controller HOST:PORT, without a token"
            )
        if order.as_new:
            _check_no_agent(folders.run_dir)
        key = _known_key(folder) or Ed25519PrivateKey.generate().private_bytes_raw()
        # Written before it is asked for: an answer that is lost on the way is for this key.
        at, answer = asyncio.run(ask_each(order, key, keep_key=lambda: _keep_key(folder, key)))
        known, network, grant = _open(answer, key)
        if not order.force:
            _check_lan(network, grant, lan)
            _check_ipv6(network, grant, has_ipv6=has_ipv6)
        write_durably(folder / "ca.pem", answer.ca.encode())
        write_durably(folder / "node.pem", answer.certificate.encode())
        own = OwnRequests(at, answer.ca, folder / "node.pem", folder / "node.key.pem")
        pods = asyncio.run(own.fetch_pods(answer.pod_pages))
        identity = Identity(folder, key, order.name, answer.pinned_key, (at,))
        known, heard_all = asyncio.run(_hear_for_all_nodes(identity, known))
        _write(folder, answer, known, grant)
        (completeness.settle if heard_all else completeness.doubt)(folder)
        _keep_pods(folders.data_dir, folder, order, pods)
        _write_last(folder, order, answer, grant.name)
        if order.as_new:
            _put_in_place(folder, target)
        with contextlib.suppress(LimpetError):  # the agent's first hello says it too
            asyncio.run(own.confirm())
    return Joined(
        grant.name,
        grant.uid,
        network.cluster,
        grant.segments,
        len({(pod.namespace, pod.pod) for pod in pods}),
    )


def _check(order: JoinOrder) -> None:
    """Raises: LimpetError for what no controller has to be asked about."""
    if order.by is JoinBy.TOKEN:
        parse_token(order.token)
    for controller in order.controllers:
        parse_controller(controller)
    if problem := name_problem(order.name):
        raise ConfigError(f"join as {order.name[:80]!r}: {problem} (choose one with --name)")


@contextlib.contextmanager
def only_join(state_dir: Path) -> Iterator[None]:
    """Nobody else changes who the node is. Raises: StorageError; LimpetError when another join
    runs."""
    with refusals("open", state_dir):
        state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise LimpetError(f"join: another `limpet join` is at work in {state_dir}") from error
    finally:
        os.close(fd)


def _check_no_agent(run_dir: Path) -> None:
    """A running agent would write what it knows as the old node into the new one's folder."""
    with contextlib.suppress(FileNotFoundError), open(run_dir / "agent.lock", "rb") as at:
        try:
            fcntl.flock(at, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LimpetError(
                "join anew: the agent runs as the node that this was (stop it first: systemctl "
                "stop limpet-agent)"
            ) from error


def _known_key(folder: Path) -> bytes | None:
    """The node's private key; None: none was made yet. Raises: StorageError."""
    path = folder / "node.key"
    key = read_if_there(path)
    if key is not None and (len(key) != KEY_BYTES or not any(key)):
        raise StorageError(
            "read",
            str(path),
            f"{len(key)} bytes instead of {KEY_BYTES}" if any(key) else "it is damaged",
            hint="remove the file, or join with --new-identity",
        )
    return key


def _keep_key(folder: Path, key: bytes) -> None:
    """The node's private key is on the disk when this returns. Raises: StorageError."""
    with refusals("make folder", folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        Disk().fsync_folder(folder.parent)
    if _known_key(folder) is None:
        write_durably(folder / "node.key", key)
    pem = Ed25519PrivateKey.from_private_bytes(key).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_durably(folder / "node.key.pem", pem)


# On the disk


def _open(answer: JoinAnswer, key: bytes) -> tuple[Known, Network, Grant]:
    """What was answered, checked. Raises: LinkError."""
    public_key = public_key_of(key)
    try:
        known = Known(KINDS, answer.pinned_key)
        for sealed in answer.documents:
            known = merge(known, [open_sealed(sealed, known)])[0]
        network: Network | None = known.value(NETWORK.name, NETWORK.name)
        grant: Grant | None = known.value(GRANT.name, uid_of(public_key))
        certified = x509.load_pem_x509_certificate(answer.certificate.encode()).public_key()
    except (SealError, ValueError) as error:
        raise LinkError(f"join: what the controller answered cannot be used: {error}") from error
    if network is None or grant is None:
        raise LinkError("join: what the controller answered is not for this node's key")
    if not isinstance(certified, Ed25519PublicKey) or certified.public_bytes_raw() != public_key:
        raise LinkError("join: the certificate that the controller made is not for this node's key")
    return known, network, grant


async def _hear_for_all_nodes(identity: Identity, known: Known) -> tuple[Known, bool]:
    """With what every node needs, such as the cluster's policies: pods are under them before the
    agent has heard anybody.

    False: not all of it could be heard now.
    """
    link = ControllerLink(identity)
    for_all_nodes = {kind.name for kind in KINDS.for_all_nodes()}
    early: set[str] = set()
    try:
        async with (
            asyncio.timeout(_FOR_ALL_NODES_S),
            aclosing(link.watch(None, revision=0)) as watch,
        ):
            async for lines in watch:
                for line in lines:
                    if line.document is not None and line.document.kind in for_all_nodes:
                        known = _heard(line.document, known, early)
                if any(line.kind is WatchKind.BOOKMARK for line in lines):
                    return known, not early
    except (LimpetError, TimeoutError):
        pass
    finally:
        link.close()
    return known, False


def _heard(sealed: Sealed, known: Known, early: set[str]) -> Known:
    """`early`: what a key has signed that is not known here: the cluster's was rotated meanwhile,
    and the network that names the next one is told later."""
    try:
        document = read_sealed(sealed, KINDS)
    except SealError:  # such a one counts nowhere
        return known
    try:
        check(document, known)
    except SealError:
        if document.era >= len(signing_keys(known)):
            early.add(document.name)
        return known
    early.discard(document.name)
    return merge(known, [document])[0]


def _check_lan(network: Network, grant: Grant, lan: Collection[Prefix]) -> None:
    for cidr, used in overlaps_with(network, lan):
        raise ConfigError(
            f"join {network.cluster}: its pods' and services' {cidr} overlaps {used}, which this "
            "node's own links use: what has such an address could be a pod or a neighbour. Nothing "
            f"was set up here. Either take {used} off the node's links (renumber the LAN), or "
            "make a cluster with other pod CIDRs, or give the same command again with --force, if "
            f"nothing needed has such an address; else `limpet node remove {grant.uid}` in "
            "the cloud"
        )


def _check_ipv6(network: Network, grant: Grant, *, has_ipv6: bool) -> None:
    given = [cidr for cidr in network.pod_cidrs if cidr.version == 6]
    if given and not has_ipv6:
        raise ConfigError(
            f"join {network.cluster}: its pods have IPv6 addresses, of {given[0]}, and the kernel "
            "here has no IPv6 (ipv6.disable=1, or built without): no pod would start. Nothing was "
            "set up here. Either start the kernel with IPv6, or make a cluster with an IPv4 pod "
            "CIDR alone (limpet controller install --pod-cidr 10.244.0.0/16), or give the same "
            f"command again with --force; else `limpet node remove {grant.uid}` in the cloud"
        )


def _write(
    folder: Path,
    answer: JoinAnswer,
    known: Known,
    grant: Grant,
) -> None:
    """Raises: StorageError."""
    file = SnapshotFile(folder / "snapshot.log", own_uid=grant.uid)
    try:
        file.read(answer.pinned_key)
        file.put(known)
        file.durable().result()
    finally:
        file.close()
    adopt_vtep_macs(folder / VTEP_FILE, answer.vtep_macs)


def _keep_pods(
    data_dir: Path, folder: Path, order: JoinOrder, pods: tuple[InterfaceAddresses, ...]
) -> None:
    """Raises: StorageError."""
    if order.by is JoinBy.TOKEN:
        keep_bindings(data_dir, pods)
    else:  # the agent runs, and has the records: they are written when it begins anew
        write_durably(folder / WAITING_PODS, msgspec.json.encode(WaitingPods(VERSION, pods)))


def _write_last(folder: Path, order: JoinOrder, answer: JoinAnswer, name: str) -> None:
    """Without this file, the node has not joined. Raises: StorageError."""
    document = ClusterFile(
        name,
        answer.pinned_key,
        order.controllers,
        by_account=order.by is JoinBy.ACCOUNT,
    )
    write_durably(folder / "cluster.json", msgspec.json.encode(document))


def keep_waiting_pods(folders: Folders) -> None:
    """Addresses of pods of the machine that this one replaces are kept, also after a join that the
    agent did itself. To be called before an agent has the records. Raises: StorageError, also for
    what cannot be read: another pod could be given such an address."""
    path = folders.cluster_dir / WAITING_PODS
    if (waiting := read_if_there(path)) is not None:
        try:
            check_version(waiting)
            pods = decode_json(waiting, WaitingPods).pods
        except (ValueError, msgspec.MsgspecError) as error:
            raise StorageError("read", str(path), str(error)) from error
        keep_bindings(folders.data_dir, pods)
        remove_durably(path)


def _put_in_place(folder: Path, target: Path) -> None:
    """Raises: StorageError."""
    with refusals("rename", folder):
        if target.exists():
            number = 1
            while (aside := target.with_name(f"{target.name}.old-{number}")).exists():
                number += 1
            os.rename(target, aside)
        os.rename(folder, target)
        Disk().fsync_folder(target.parent)
