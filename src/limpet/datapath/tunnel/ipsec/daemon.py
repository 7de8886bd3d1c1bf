"""What is asked of the IKE daemon: starting and ending it, connections and SAs."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable
from functools import cached_property

from limpet.base.addresses import Prefix
from limpet.base.errors import KernelError, StorageError
from limpet.base.ownership import IPSEC_IFNAME
from limpet.cluster.identity import Identity
from limpet.datapath.tunnel.ipsec.codec import (
    connection,
    connection_name,
    delete_rule_of_daemon,
    needed_plugins,
    parse_connections,
    parse_sas,
    parse_version,
)
from limpet.datapath.tunnel.ipsec.esp import device_ifindex, drop_device, drop_sas, put_device
from limpet.datapath.tunnel.ipsec.process import ANSWER_S, IpsecProcess
from limpet.datapath.tunnel.ipsec.state import OLDEST_IPSEC, IkeSa, IpsecIdentity, IpsecPeer
from limpet.datapath.tunnel.ipsec.vici import Vici
from limpet.datapath.tunnel.program import Program
from limpet.linux.netlink.socket import RouteSocket

_HANGS_S = 10.0


def read_identity(identity: Identity) -> IpsecIdentity:
    """Who this node is in IKE, from the files of its identity. Raises: StorageError."""
    paths = (identity.key_path, identity.certificate_path)
    try:
        return IpsecIdentity(identity.uid, *(path.read_bytes() for path in paths))
    except OSError as error:
        why = f"{error.strerror or error}: without it there are no IPsec tunnels"
        raise StorageError("read", error.filename, why) from error


class IpsecDaemon(Program):
    """One user's view of the daemon, with a connection of its own.

    In the network namespace of the calling thread. A daemon that was killed is simply not there.
    """

    def __init__(
        self,
        process: IpsecProcess,
        identity: IpsecIdentity,
        *,
        waits_s: float = ANSWER_S,
        asks_anyway: bool = True,
    ) -> None:
        """`waits_s`, `asks_anyway`: as for `Vici`."""
        self.process = process
        self._identity = identity
        self._vici = Vici(process, waits_s=waits_s, asks_anyway=asks_anyway)
        self.settings = ""
        """What it is to run with; empty: nothing is wanted yet."""
        self.port = 0
        """UDP port at which it listens, as `settings` say."""
        self.is_starting = False

    def close(self) -> None:
        """The daemon goes on."""
        self._vici.close()

    @property
    def missing(self) -> str:
        return self.process.missing

    @property
    def pid(self) -> int | None:
        """None: it does not run, or is only being started. Raises: KernelError."""
        return None if self.is_starting else self.process.pid

    @property
    def hangs(self) -> bool:
        since_s = self.process.silent_since_s
        return since_s is not None and time.monotonic() - since_s > _HANGS_S

    def start(self) -> None:
        """It runs with `settings`, fit for its work, and knows this node; after a failure it does
        not run. Raises: KernelError."""
        self.is_starting = True
        try:
            if self.is_right():
                return
            self.stop()
            self._check_port()
            try:
                self.process.start(self.settings)
                if self.process.in_kernel:
                    with RouteSocket() as route:
                        put_device(route)
                self._check()
                self._introduce()
            except KernelError:
                self.stop()
                raise
        finally:
            self.is_starting = False

    def _check_port(self) -> None:
        """Whether the port is free: a daemon that does not get it says nothing, and has no peers.

        Raises: KernelError.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as trial:
                    if family == socket.AF_INET6:
                        trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    trial.bind(("", self.port))
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue  # a machine without IPv6
                hint = "another program has it: end it, or choose another (tunnel_port)"
                what = f"UDP port {self.port} for strongSwan"
                raise KernelError("listen on", what, error.errno or 0, hint) from error

    def stop(self) -> None:
        """It does not run, and nothing of it is left. Raises: KernelError."""
        self._vici.close()
        self.process.stop()
        with RouteSocket() as route:
            route.apply(*map(delete_rule_of_daemon, (4, 6)))
            drop_device(route, device_ifindex(route))
        drop_sas()

    def clear_if_dead(self) -> bool:
        """Removes the kernel's xfrm device if the daemon has ended, as the daemon's own tun device
        would go; the kernel's notification wakes a round. Returns whether it has ended. One that is
        killed closes its connections before it has. Raises: KernelError.
        """
        with RouteSocket() as route:
            # Read first: a daemon that is started meanwhile makes another device.
            ifindex = device_ifindex(route)
            has_ended = self.process.pid is None
            if has_ended:
                drop_device(route, ifindex)
        return has_ended

    def check(self) -> None:
        """Whether it answers. Raises: KernelError."""
        self._vici.ask("version")

    def read_version(self) -> str:
        try:
            return ".".join(map(str, self._version()))
        except KernelError:
            return ""

    def _version(self) -> tuple[int, ...]:
        try:
            return parse_version(self._vici.ask("version"))
        except ValueError as error:
            raise _misread("version", error) from error

    def _check(self) -> None:
        version = self._version()
        what = f"strongSwan {'.'.join(map(str, version))}"
        if version[:2] < OLDEST_IPSEC:
            oldest = ".".join(map(str, OLDEST_IPSEC))
            hint = f"it is older than {oldest}: install a newer one"
            raise KernelError("use", what, errno.EPROTONOSUPPORT, hint)
        loaded = [each.decode() for each in self._vici.ask("stats").get("plugins", [])]
        lacking = sorted({*needed_plugins(in_kernel=self.process.in_kernel)} - {*loaded})
        if lacking:
            hint = f"it has no plugin {', '.join(lacking)}: install libcharon-extra-plugins and "
            hint += "libstrongswan-standard-plugins"
            raise KernelError("use", what, errno.ENOPKG, hint)
        with RouteSocket() as route:
            link = route.link(IPSEC_IFNAME)
        if link is None:
            hint = "it made no tunnel device: is /dev/net/tun there (modprobe tun)?"
            raise KernelError("use", what, errno.ENODEV, hint)

    def _introduce(self) -> None:
        own = self._identity
        self._vici.ask("load-cert", {"type": "X509", "flag": "NONE", "data": own.certificate})
        # Last: `knows_this_node` looks for the key only.
        self._vici.ask("load-key", {"type": "any", "data": own.private_key})

    def is_right(self) -> bool:
        """It runs with `settings`, and knows this node. Raises: KernelError."""
        return (
            self.process.pid is not None
            and self.process.settings == self.settings
            and self.knows_this_node()
        )

    def knows_this_node(self) -> bool:
        """Raises: KernelError."""
        keys = self._vici.ask("get-keys").get("keys", [])
        return self._key_id in [each.decode() for each in keys]

    @cached_property
    def _key_id(self) -> str:
        """Id of this node's key, as `get-keys` names it: SHA-1 of the public key."""
        from cryptography import x509  # for this one question; an agent starts without

        certificate = x509.load_pem_x509_certificate(self._identity.certificate)
        # Source: KEYID_PUBKEY_SHA1 in libstrongswan/credentials/cred_encoding.h.
        return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()

    # Connections and SAs

    def peers(self) -> dict[bytes, IpsecPeer]:
        """Loaded connections by public key, without endpoints. Raises: KernelError."""
        try:
            found = parse_connections(self._vici.each("list-conns", "list-conn"))
        except ValueError as error:
            raise _misread("connections", error) from error
        # A change that was broken off leaves a connection of an older generation, too.
        return {peer.public_key: peer for peer in sorted(found, key=lambda each: each.generation)}

    def put(self, peer: IpsecPeer, more: Iterable[Prefix] = ()) -> None:
        """Loads the peer's connection (`codec.connection`); SAs stay. Raises: KernelError."""
        own_uid = self._identity.uid
        in_kernel = self.process.in_kernel
        conn = connection(peer, own_uid=own_uid, port=self.port, more=more, in_kernel=in_kernel)
        self._vici.ask("load-conn", conn)

    def forget(self, peer: IpsecPeer) -> None:
        """Unloads the peer's connection; SAs stay. Raises: KernelError."""
        name = connection_name(peer.identity_key, peer.generation)
        try:
            self._vici.ask("unload-conn", {"name": name})
        except KernelError as error:
            if error.errno != errno.EPROTO:
                raise  # else it was not there

    def initiate(self, peer: IpsecPeer, child: str) -> None:
        """Initiates the child, without waiting for an outcome. Raises: KernelError."""
        name = connection_name(peer.identity_key, peer.generation)
        self._vici.ask("initiate", {"ike": name, "child": child, "timeout": "-1"})

    def end_ike(self, uniqueid: int, *, at_once: bool = False) -> None:
        """Ends an IKE_SA and all of its children. `at_once`: whatever the peer says to it.

        Raises: KernelError.
        """
        what = {"ike-id": str(uniqueid), "timeout": "-1"}
        self._vici.ask("terminate", {**what, "force": "yes"} if at_once else what)

    def end_child(self, uniqueid: int) -> None:
        """Raises: KernelError."""
        self._vici.ask("terminate", {"child-id": str(uniqueid), "timeout": "-1"})

    def sas(self) -> list[IkeSa]:
        """The oldest first. Raises: KernelError."""
        try:
            found = parse_sas(self._vici.each("list-sas", "list-sa"))
        except ValueError as error:
            raise _misread("SAs", error) from error
        return sorted(found, key=lambda sa: -sa.age_s)


def _misread(what: str, error: ValueError) -> KernelError:
    return KernelError("read", f"strongSwan's {what}", errno.EBADMSG, str(error))
