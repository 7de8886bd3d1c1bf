"""The first policy of a cluster, whose pods nobody has asked for until then."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from limpet.cloud.workloads.policy_source import PolicySource
from limpet.kubernetes.access.access import Access, parse_server
from limpet.policies.compiler import compile_sides
from limpet.policies.heard import ReadPolicies
from limpet.policies.policy import Key, PolicyPod
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.waiting import until

NAMESPACE: dict[str, Any] = {"metadata": {"name": "shop", "uid": "1", "resourceVersion": "10"}}
POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "shop", "name": "doors", "uid": "2", "resourceVersion": "11"},
    "spec": {"podSelector": {"matchLabels": {"app": "web"}}},
}
LOCAL = {
    key: PolicyPod(key, (ip_address(f"10.0.0.{number}"),), None)
    for number, key in enumerate((Key("shop", "web"), Key("shop", "db")), 2)
}


class EdgeServer:
    """One whose list of all pods never ends, as by a link that is slow, or drops then."""

    def __init__(self, own_pods: str) -> None:
        """`own_pods`: what becomes of a question for one pod: "told", "refused" or "silent"."""
        self.created = asyncio.Event()
        self.asked: list[str] = []
        self._own_pods = own_pods

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = unquote((await take_request(reader)).split(b" ")[1].decode())
            of = target.partition("?")[0].rpartition("/")[2]
            if "watch=1" in target:
                writer.write(STREAM)
                if of == "networkpolicies":
                    await self.created.wait()
                    event = json.dumps({"type": "ADDED", "object": POLICY}).encode() + b"\n"
                    writer.write(chunk(event))
                await writer.drain()
                await reader.read()  # until the other goes
                return
            items: list[Any] = [NAMESPACE] if of == "namespaces" else []
            if of == "pods":
                _, is_one, name = target.partition("fieldSelector=metadata.name=")
                self.asked.append(target)
                if not is_one or self._own_pods == "silent":
                    await reader.read()
                    return
                if self._own_pods == "refused":
                    writer.write(answer(b"{}", "403 Forbidden"))
                    continue
                metadata = {"namespace": "shop", "name": name.partition("&")[0], "uid": name}
                items = [{"metadata": {**metadata, "labels": {"app": metadata["name"]}}}]
            listed = {"metadata": {"resourceVersion": "10"}, "items": items}
            writer.write(answer(json.dumps(listed).encode()))
            await writer.drain()


def isolated(heard: ReadPolicies) -> list[str]:
    """Names of this node's pods that are, since there is a policy."""
    if not heard.policies:
        return []
    world = heard.world(LOCAL)
    sides = compile_sides(world, [world.pods[key] for key in LOCAL])
    return [key.name for key in LOCAL if (key, "ingress") in sides.sides]


def hear(path: Path, own_pods: str) -> list[list[str]]:
    """Names of isolated pods, each time that something was told and there are some."""
    seen: list[list[str]] = []

    async def scenario() -> None:
        server, heard = EdgeServer(own_pods), ReadPolicies()
        async with serving(server.talk, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            source = PolicySource(
                heard,
                path,
                lambda: access,
                tell=lambda _why: seen.append(isolated(heard)),
                own_pods=lambda: LOCAL,
                random=lambda: 0.0,
                gather_s=0.0,
            )
            source.start()
            await until(lambda: heard.is_whole)
            assert not server.asked
            server.created.set()
            await until(lambda: heard.policies)
            await until(lambda: any("fieldSelector" not in each for each in server.asked))
            await source.stop()

    asyncio.run(scenario())
    return [each for each in seen if each]


def test_it_closes_no_pod_that_it_does_not_select_while_the_clusters_pods_are_listed(
    tmp_path: Path,
) -> None:
    assert hear(tmp_path / "kept", "told") == [["web"]]


@pytest.mark.parametrize("own_pods", ["refused", "silent"])
def test_it_holds_also_where_nobody_tells_of_the_nodes_own_pods(
    tmp_path: Path, own_pods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are closed while in doubt."""
    monkeypatch.setattr("limpet.cloud.workloads.policy_source.OWN_PODS_S", 0.1)
    assert hear(tmp_path / "kept", own_pods) == [["web", "db"]]
