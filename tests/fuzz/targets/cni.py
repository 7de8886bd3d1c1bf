"""What runtimes say to the shim, and the shim and a person's commands to the agent; other networks'
configurations on the node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from limpet.base.errors import CniError
from limpet.cli.install.cni_configs import read_cni_configs
from limpet.cni import frames
from limpet.cni.frames import AdminCall, CniCall, FrameError
from limpet.cni.protocol.request import parse_request, reply_version
from limpet.cni.protocol.result import encode_result, parse_result
from tests.fuzz.target import Shape, fuzzed
from tests.unit.cni.protocol.cni_inputs import CONF, CONTAINERD_RUNTIME, environ

_RESULT = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
    "ips": [{"address": "10.244.7.5/24", "gateway": "10.244.7.1", "interface": 0}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.244.7.1", "mtu": 1400}],
    "dns": {"nameservers": ["10.96.0.10"], "search": ["svc"], "options": ["ndots:5"]},
}


def _calls() -> Iterator[bytes]:
    ipam_only = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "bridge",
        "ipam": {
            "type": "limpet",
            "subnet": "10.1.0.0/16",
            "rangeStart": "10.1.0.9",
            "gateway": "10.1.0.1",
        },
    }
    attachments = {"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]}
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"):
        for conf in (
            CONF,
            {
                **CONF,
                "cniVersion": "1.1.0",
                "runtimeConfig": CONTAINERD_RUNTIME,
                "prevResult": _RESULT,
            },
            ipam_only,
        ):
            call = CniCall(
                environ(verb),
                json.dumps({**conf, **attachments} if verb == "GC" else conf).encode(),
                0,
            )
            variables = b"\0".join(f"{k}={v}".encode() for k, v in call.environ.items())
            yield b"C\0" + variables + b"\0\0" + call.stdin
    yield frames.encode_admin_call(AdminCall("status", {"a": [1]}))[frames.REQUEST_HEADER_BYTES :]


@fuzzed(seeds=_calls, errors=(FrameError,), most_bytes=8192)
def frame_to_the_agent(data: bytes) -> None:
    call = frames.decode_request(data)
    if isinstance(call, CniCall):
        reply_version(call.stdin)
        try:
            parse_request(call.environ, call.stdin)
        except CniError:
            return


def _configurations() -> Iterator[bytes]:
    yield json.dumps(CONF).encode()
    yield json.dumps(
        {
            **CONF,
            "runtimeConfig": CONTAINERD_RUNTIME,
            "args": {"cni": {"ips": ["10.244.7.9"], "labels": [{"key": "a", "value": "b"}]}},
        }
    ).encode()
    yield json.dumps(
        {**CONF, "prevResult": _RESULT, "bandwidth": {"ingressRate": 1000, "ingressBurst": 2000}}
    ).encode()
    yield json.dumps(
        {
            "cniVersion": "1.1.0",
            "name": "n",
            "type": "limpet",
            "mtu": 1400,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.1.0.0/16", "rangeEnd": "10.1.9.9"}]],
            },
        }
    ).encode()


@fuzzed(seeds=_configurations, errors=(CniError,), shape=Shape.JSON, most_bytes=16_384)
def network_configuration(data: bytes) -> None:
    """Of an ADD, and of a DEL, which forgives more."""
    reply_version(data)
    for verb in ("DEL", "GC", "CHECK", "ADD"):
        try:
            parse_request(environ(verb), data)
        except CniError:
            continue


@fuzzed(
    seeds=lambda: ["\n".join(f"{k}={v}" for k, v in environ().items()).encode()],
    errors=(CniError,),
    shape=Shape.TEXT,
)
def cni_variables(data: bytes) -> None:
    pairs = (line.partition("=") for line in data.decode("utf-8", "surrogateescape").split("\n"))
    parse_request({key: value for key, _, value in pairs}, json.dumps(CONF).encode())


@fuzzed(
    seeds=lambda: [json.dumps(_RESULT).encode()],
    errors=(CniError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
)
def result_of_another_plugin(data: bytes) -> None:
    result = parse_result(msgspec.json.decode(data), "prevResult")
    for version in ("0.3.0", "1.0.0", "1.1.0"):
        encode_result(result, version)


@fuzzed(
    seeds=lambda: [frames.encode_answer(0, b"{}")[: frames.ANSWER_HEADER_BYTES], b"LMP1\xff\0\0\0"],
    errors=(FrameError,),
    most_bytes=64,
)
def frame_heads(data: bytes) -> None:
    """Of a request, at the agent, and of its answer."""
    with suppress(FrameError):
        assert frames.request_length(data) <= frames.MAX_REQUEST_BYTES
    frames.decode_answer_header(data)


@cache
def _conf_dir() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="fuzz-cni-")


def _conflists() -> Iterator[bytes]:
    yield json.dumps(
        {
            "name": "cbr0",
            "plugins": [{"type": "flannel", "delegate": {"bridge": "cni0"}}, {"type": "portmap"}],
        }
    ).encode()
    yield json.dumps(
        {
            "name": "b",
            "type": "bridge",
            "ipam": {"subnet": "10.1.0.0/16", "ranges": [[{"subnet": "fd00::/64"}]]},
        }
    ).encode()


@fuzzed(seeds=_conflists, shape=Shape.JSON)
def configuration_of_another_network(data: bytes) -> None:
    """Files that others put beside ours: one that nobody can read stops nothing."""
    folder = Path(_conf_dir().name)
    for name in ("10-a.conflist", "20-b.conf"):
        (folder / name).write_bytes(data)
    assert len(read_cni_configs(folder)) == 2
