"""The IKE daemon as one that knows who this node is, and what it has of ours."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from functools import cached_property

from limpet.base.addresses import Prefix
from limpet.base.errors import KernelError
from limpet.base.ownership import IPSEC_IFNAME
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
from limpet.linux.netlink.socket import RouteSocket


class IpsecDaemon:
    """In the network namespace of the calling thread; one that is killed is simply not there."""

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
        self.port = 0
        """UDP port that it listens on."""

    def close(self) -> None:
        """It goes on."""
        self._vici.close()

    def start(self, settings: str) -> None:
        """It runs with these settings, fit for its work, and knows this node. Raises: KernelError:
        then it does not run."""
        self._vici.close()
        self.process.start(settings)
        try:
            if self.process.in_kernel:
                with RouteSocket() as route:
                    put_device(route)
            self._check()
            self._introduce()
        except KernelError:
            self.end()
            raise

    def check_port(self, port: int) -> None:
        """It is free: the daemon says nothing when it does not get its port, and has no peers.

        Raises: KernelError.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as trial:
                    if family == socket.AF_INET6:
                        trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    trial.bind(("", port))
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue  # a machine without IPv6
                hint = "another program has it: end it, or choose another (tunnel_port)"
                what = f"UDP port {port} for strongSwan"
                raise KernelError("listen on", what, error.errno or 0, hint) from error

    def end(self) -> None:
        """It does not run, and nothing of it is left. Raises: KernelError."""
        self._vici.close()
        self.process.stop()
        with RouteSocket() as route:
            route.apply(*map(delete_rule_of_daemon, (4, 6)))
            drop_device(route, device_ifindex(route))
        drop_sas()

    def clear_if_dead(self) -> None:
        """The device goes with its daemon, as one that the daemon makes: the kernel tells of that.

        Raises: KernelError.
        """
        with RouteSocket() as route:
            # Looked for first: what a daemon that was started meanwhile has made is another one.
            ifindex = device_ifindex(route)
            if self.process.pid is None:
                drop_device(route, ifindex)

    def check(self) -> None:
        """Whether it answers. Raises: KernelError."""
        self._vici.ask("version")

    def read_version(self) -> tuple[int, ...]:
        """Raises: KernelError."""
        try:
            return parse_version(self._vici.ask("version"))
        except ValueError as error:
            raise _misread("version", error) from error

    def _check(self) -> None:
        version = self.read_version()
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
        self._vici.ask("load-cert", {"type": "X509", "flag": "CA", "data": own.authority})
        self._vici.ask("load-cert", {"type": "X509", "flag": "NONE", "data": own.certificate})
        # Last: who finds the key finds everything.
        self._vici.ask("load-key", {"type": "any", "data": own.private_key})

    def is_right(self, settings: str) -> bool:
        """It runs with these settings, and knows this node. Raises: KernelError."""
        process = self.process
        return process.pid is not None and process.settings == settings and self.knows_this_node()

    def knows_this_node(self) -> bool:
        """Raises: KernelError."""
        keys = self._vici.ask("get-keys").get("keys", [])
        return self._key_id in [each.decode() for each in keys]

    @cached_property
    def _key_id(self) -> str:
        """As the daemon tells keys: SHA-1 of the public key."""
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate(self._identity.certificate)
        # Source: KEYID_PUBKEY_SHA1 in libstrongswan/credentials/cred_encoding.h.
        return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()

    # Connections and SAs

    def peers(self) -> dict[bytes, IpsecPeer]:
        """As they are loaded, by public key; their endpoints are not told. Raises: KernelError."""
        try:
            found = parse_connections(self._vici.each("list-conns", "list-conn"))
        except ValueError as error:
            raise _misread("connections", error) from error
        # A change that was broken off leaves the older one.
        return {peer.public_key: peer for peer in sorted(found, key=lambda each: each.generation)}

    def put(self, peer: IpsecPeer, more: Iterable[Prefix] = ()) -> None:
        """Its connection is as `peer` says; SAs stay. Raises: KernelError."""
        own_uid = self._identity.uid
        in_kernel = self.process.in_kernel
        conn = connection(peer, own_uid=own_uid, port=self.port, more=more, in_kernel=in_kernel)
        self._vici.ask("load-conn", conn)

    def forget(self, peer: IpsecPeer) -> None:
        """Its connection is not there; SAs stay. Raises: KernelError."""
        name = connection_name(peer.public_key, peer.generation)
        try:
            self._vici.ask("unload-conn", {"name": name})
        except KernelError as error:
            if error.errno != errno.EPROTO:
                raise  # else it was not there

    def initiate(self, peer: IpsecPeer, child: str) -> None:
        """Begins, and waits for nothing. Raises: KernelError."""
        name = connection_name(peer.public_key, peer.generation)
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


class IpsecProgram:
    """Starting and ending the daemon, which may take its time: also in another thread."""

    def __init__(self, daemon: IpsecDaemon) -> None:
        """`daemon`: nobody else's."""
        self._daemon = daemon
        self.settings = ""
        """What it is to run with; empty: nothing is wanted yet."""
        self.port = 0
        """That these name."""
        self.is_starting = False

    @property
    def missing(self) -> str:
        """Why it cannot be started, and what to do; empty: it can, as far as is seen."""
        return self._daemon.process.missing

    @property
    def pid(self) -> int | None:
        """None: it does not run, or is only being started. Raises: KernelError."""
        return None if self.is_starting else self._daemon.process.pid

    def start(self) -> None:
        """It runs as it is to; one that did already is left as it is. Raises: KernelError."""
        self.is_starting = True
        try:
            if not self._daemon.is_right(self.settings):
                self._daemon.end()
                self._daemon.check_port(self.port)
                self._daemon.start(self.settings)
        finally:
            self.is_starting = False

    def stop(self) -> None:
        """It does not run, and nothing of it is left. Raises: KernelError."""
        self._daemon.end()

    def read_version(self) -> str:
        """Of strongSwan, as 5.9.8; empty if it does not say."""
        try:
            return ".".join(map(str, self._daemon.read_version()))
        except KernelError:
            return ""

    def close(self) -> None:
        """It goes on."""
        self._daemon.close()


def _misread(what: str, error: ValueError) -> KernelError:
    return KernelError("read", f"strongSwan's {what}", errno.EBADMSG, str(error))
