"""Probes of what creators of pods ask for."""

from __future__ import annotations

import json

from limpet.base.bounds.pods import ALLOWED_ADDRESSES, ALLOWED_MACS
from limpet.base.errors import CniError
from limpet.cni.protocol.request import parse_request
from tests.unit.bounds.probes import probe


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
