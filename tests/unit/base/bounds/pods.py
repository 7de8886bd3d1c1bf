"""Probes of what creators of pods ask for."""

from __future__ import annotations

import base64
import json
import zlib

from limpet.base.bounds.pods import ALLOWED_ADDRESSES, ALLOWED_MACS, PROBER_ANSWER
from limpet.base.errors import CniError, LimpetError
from limpet.cli.connectivity.tasks import decode_outcomes
from limpet.cni.protocol.request import parse_request
from tests.unit.base.bounds.probes import probe


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
