"""Probes of what creators of pods ask for."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from limpet.base.bounds.tenants import (
    ALLOWED_ADDRESSES,
    ALLOWED_MACS,
    CNI_CONNECTIONS,
    CNI_LIST,
    CNI_NAME,
    CNI_NETWORKS,
    CNI_REQUEST,
    CNI_SHOWN,
    CNI_STDIN,
    DNS_ALIASES,
    PROBER_ANSWER,
    RESOLV_CONF,
)
from limpet.base.errors import CniError, LimpetError, StorageError
from limpet.cli.connectivity.tasks import decode_outcomes
from limpet.cni import frames
from limpet.cni.ledgers import Ledgers
from limpet.cni.protocol.request import parse_request
from limpet.cni.protocol.values import CniRequest
from limpet.cni.resolv_conf import read_dns
from limpet.cni.server import CniServer
from limpet.datapath.node.pod.attachments import Attachments
from limpet.dns import wire
from limpet.dns.names import ClusterNames
from limpet.services.catalog import Catalog
from limpet.services.values import Service
from tests.unit.base.bounds.probes import probe
from tests.waiting import until


def _is_taken(key: str, values: list[str]) -> bool:
    conf = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "limpet",
        "ipam": {"type": "limpet"},
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {key: ",".join(values)}},
    }
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c",
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": "eth0",
    }
    try:
        request = parse_request(environment, json.dumps(conf).encode())
    except CniError:
        return False
    allowed = request.wishes.allowed
    return len(allowed.prefixes) + len(allowed.macs) == len(values)


@probe(ALLOWED_ADDRESSES)
def _(amount: int) -> bool:
    return _is_taken("limpet.dev/allowed-addresses", [f"10.9.0.{n}" for n in range(amount)])


@probe(ALLOWED_MACS)
def _(amount: int) -> bool:
    return _is_taken("limpet.dev/allowed-macs", [f"02:00:00:00:00:{n:02x}" for n in range(amount)])


@probe(PROBER_ANSWER)
def _(amount: int) -> bool:
    packed = base64.b64encode(zlib.compress(b"[" + b" " * (amount - 2) + b"]"))
    try:
        return decode_outcomes("z:" + packed.decode()) == []
    except LimpetError:
        return False


@probe(DNS_ALIASES)
def _(amount: int) -> bool:
    catalog = Catalog()
    for number in range(amount - 1):
        to = f"a{number + 1}.x.svc.cluster.local"
        catalog.put(Service("x", f"a{number}", type="ExternalName", external_name=to))
    catalog.put(Service("x", f"a{amount - 1}", cluster_ips=("10.96.0.1",)))
    names = ClusterNames(catalog, "cluster.local")
    found = names.look_up((b"a0", b"x", b"svc", b"cluster", b"local"), wire.A)
    return found is not None and found.code == wire.NOERROR


# What a container runtime hands on

_ADD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
}


def _is_understood(read: Callable[[], object]) -> bool:
    try:
        read()
    except (CniError, frames.FrameError):
        return False
    return True


@probe(CNI_REQUEST)
def _(amount: int) -> bool:
    header = b"LMP1" + (amount - frames.REQUEST_HEADER_BYTES).to_bytes(4, "little")
    return _is_understood(lambda: frames.request_length(header))


@probe(CNI_STDIN)
def _(amount: int) -> bool:
    return _is_understood(lambda: frames.decode_request(b"C\0\0" + bytes(amount)))


def _request(**conf: object) -> CniRequest:
    whole = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "limpet",
        "ipam": {"type": "limpet"},
        **conf,
    }
    return parse_request(_ADD, json.dumps(whole).encode())


@probe(CNI_NAME)
def _(amount: int) -> bool:
    return _is_understood(lambda: _request(name="x" * amount))


@probe(CNI_LIST)
def _(amount: int) -> bool:
    routes = [{"dst": "10.0.0.0/8"}] * amount
    return _is_understood(lambda: _request(ipam={"type": "limpet", "routes": routes}))


@probe(CNI_NETWORKS)
def _(amount: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        ledgers = Ledgers(Path(folder), 30.0, Attachments(Path(folder, "run")))
        try:
            for number in range(amount):
                ledgers.ledger(f"network-{number}")
        except StorageError:
            return False
        finally:
            ledgers.close()
    return True


@probe(CNI_CONNECTIONS)
def _(amount: int) -> bool:
    """Whether all are served at once; those that are not are, once one has its answer."""

    async def scenario(path: Path) -> bool:
        served, answered = 0, asyncio.Semaphore(0)

        async def serve(_call: object, _is_gone: Callable[[], bool]) -> tuple[int, bytes]:
            nonlocal served
            served += 1
            await answered.acquire()
            return 0, b"{}"

        server = CniServer(path, serve)
        await server.start()
        request = frames.encode_admin_call(frames.AdminCall("status", {}))
        clients = []
        for _ in range(amount):
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].connect(str(path))
            clients[-1].sendall(request)
        await until(lambda: served >= min(amount, CNI_CONNECTIONS.most))
        for _ in range(8):
            await asyncio.sleep(0)
        at_once = served
        for _ in clients:
            answered.release()
        await until(lambda: served == amount)
        await server.stop()
        for client in clients:
            client.close()
        return at_once == amount

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(scenario(Path(folder, "socket")))


@probe(CNI_SHOWN)
def _(amount: int) -> bool:
    name = "/" + "x" * (amount - len('"/"'))
    try:
        _request(name=name)
    except CniError as error:
        return json.dumps(name) in str(error)
    return False


@probe(RESOLV_CONF)
def _(amount: int) -> bool:
    """Its last line is read to its end."""
    with tempfile.NamedTemporaryFile() as file:
        last = b"\nnameserver 192.0.2.1"
        file.write(b"#" * (amount - len(last)) + last)
        file.flush()
        request = _request(ipam={"type": "limpet", "resolvConf": file.name})
        return read_dns(request.conf).nameservers == ("192.0.2.1",)
