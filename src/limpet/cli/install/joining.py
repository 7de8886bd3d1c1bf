"""What installing and removing have to do with the cluster that the node is in, or gets into."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.agent.settings import Settings
from limpet.base.addresses import Prefix
from limpet.base.disk import read_if_there, remove_durably
from limpet.base.errors import CommandLineError, ConfigError, LimpetError, StorageError
from limpet.base.node_state import NodeState
from limpet.cli.install.files import Manifest
from limpet.cli.output import counted
from limpet.cluster.identity import Identity, load_identity
from limpet.cluster.nodes import Snapshot

if TYPE_CHECKING:  # loaded only where a node joins
    from limpet.cloud.join import Joined
    from limpet.cloud.join_requests import JoinOrder


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What the command line says of a cluster; all of it empty: nothing."""

    token: str = ""
    controllers: tuple[str, ...] = ()
    name: str = ""
    """Empty: the machine's host name."""


def node_to_join(options: JoinOptions, settings: Settings, segments: tuple[str, ...]) -> bool:
    """Whether the node has to join before it is installed; it has not when it joined already.

    `segments`: those that the command line names. In Kubernetes the API server says where the
    controllers are. Raises: CommandLineError for what contradicts itself,
    ConfigError for what the node is already; LimpetError when its identity cannot be read.
    """
    if options.token and segments:
        raise CommandLineError(
            "install: --segment and --token exclude each other (a cluster grants its nodes their "
            "segments; leave --segment out)"
        )
    told = settings.source.source == "kubernetes"
    if bool(options.token) != bool(options.controllers) and not (options.token and told):
        raise CommandLineError(
            "install: --token and --controller belong together (limpet token create, where the "
            "controller runs, makes a token)"
        )
    identity = load_identity(settings.folders.cluster_dir)
    if identity is None:
        if options.name and not options.token:
            raise ConfigError(
                "install: --name is the node's in a cluster, and it is in none (say --token and "
                "--controller too, or leave --name out)"
            )
        return bool(options.token)
    if segments:
        raise ConfigError(
            f"install: this node is {identity.name} of a cluster, which grants its segments (leave "
            "--segment out)"
        )
    if options.name not in ("", identity.name) or _is_of_another(options.token, identity):
        raise ConfigError(
            f"install: this node has joined a cluster already, as {identity.name} (leave --token, "
            "--controller and --name out; to make it another node: stop the agent, then "
            "`limpet join --new-identity`)"
        )
    return False


def _is_of_another(token: str, identity: Identity) -> bool:
    """The token is of another cluster than the node. Raises: LimpetError."""
    from limpet.cluster.api import ca_digest, parse_token

    if not token:
        return False
    pem = read_if_there(identity.ca_path) or b""
    try:
        return parse_token(token).ca_digest != ca_digest(ssl.PEM_cert_to_DER_cert(pem.decode()))
    except ValueError as error:
        raise StorageError(
            "read", str(identity.ca_path), "it holds no certificate", hint="limpet doctor"
        ) from error


def folders_of(settings: Settings) -> tuple[Path, ...]:
    """Folders that the node has on its disk before its agent starts."""
    return (
        settings.folders.state_dir,
        *((settings.folders.data_dir,) if settings.pods.cni else ()),
    )


def join_first(settings: Settings, options: JoinOptions, *, force: bool) -> str:
    """The node joins; returns that in words. Raises: LimpetError, as `join_cluster`."""
    from limpet.cloud.join_requests import JoinOrder

    order = JoinOrder(
        options.token,
        tuple(dict.fromkeys(options.controllers)),
        options.name or socket.gethostname(),
        force=force,
    )
    joined = join_cluster(settings, order)
    segments = ", ".join(map(str, joined.segments)) or "none yet"
    kept = f", addresses kept for {counted(joined.kept_pods, 'pod')}" if joined.kept_pods else ""
    return f"{joined.name} ({joined.uid}): joined {joined.cluster}, segments {segments}{kept}"


def join_cluster(settings: Settings, order: JoinOrder) -> Joined:
    """The node joins. Raises: LimpetError.

    What a controller refuses leaves nothing behind. Where no answer came, the node's key stays:
    the token may be that key's by now.
    """
    from limpet.cloud.join import join
    from limpet.cloud.link import ControllerRefusedError
    from limpet.linux.sysctl import has_ipv6
    from limpet.linux.underlay import read_lan

    if segments := settings.pods.segments:
        raise ConfigError(
            f"join: the agent's configuration has segments = {[str(each) for each in segments]}, "
            "and a cluster grants its nodes other ones (take the key out; pods that run now keep "
            "their addresses until they restart)"
        )
    manifest = Manifest.load(settings.folders.state_dir)
    fresh = not settings.folders.cluster_dir.exists()
    for folder in folders_of(settings):
        manifest.make_folder(folder)
    try:
        with _private_files():
            lan = read_lan(settings.peers.links)
            return join(settings.folders, order, lan, has_ipv6=has_ipv6())
    except LimpetError as error:
        if fresh and isinstance(error.__cause__, ControllerRefusedError):
            shutil.rmtree(settings.folders.cluster_dir)
        if not settings.folders.cluster_dir.exists() and not manifest.files:
            remove_durably(manifest.path)
            manifest.remove_folders()
        raise


@contextmanager
def _private_files() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


# What a node that has joined knows.


def own_snapshot(settings: Settings) -> Snapshot:
    """The network and the node's own grant, as they are on the disk.

    Empty where the node has joined none, or where they cannot be read: the agent tells that.
    """
    from limpet.cluster.nodes import snapshot_of
    from limpet.cluster.snapshot.file import OWN_NAME, read_documents

    folder = settings.folders.cluster_dir
    try:
        identity = load_identity(folder)
        if identity is None:
            return Snapshot()
        nothing, known = read_documents(folder / OWN_NAME, identity.pinned_key)
        return snapshot_of(known, nothing, Snapshot())
    except LimpetError:
        return Snapshot()


def granted_state(settings: Settings) -> NodeState:
    """What the node is by its settings and what the cluster granted, as far as that is known."""
    pods, snapshot = settings.pods, own_snapshot(settings)
    if snapshot.network is None:
        return NodeState(pods.segments, pods.cluster_cidrs)
    segments = [segment for entry in snapshot.nodes.values() for segment in entry.grant.segments]
    cidrs: tuple[Prefix, ...] = (*pods.cluster_cidrs, *snapshot.network.pod_cidrs)
    return NodeState(tuple(segments), tuple(dict.fromkeys(cidrs)), in_cluster=True)


# Leaving.


def identity_folders(settings: Settings) -> list[Path]:
    """What the node is in its cluster, was before it joined anew, or was about to become."""
    here = settings.folders.cluster_dir
    return sorted(path for path in here.parent.glob(f"{here.name}*") if path.is_dir())


def node_name(settings: Settings) -> str:
    """In its cluster; what stands for it where that cannot be read."""
    try:
        identity = load_identity(settings.folders.cluster_dir)
    except LimpetError:
        return "NAME"
    return identity.name if identity is not None else "NAME"
