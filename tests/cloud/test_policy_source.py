"""What is heard of policies at an API server that has objects which nobody can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from limpet.base.bounds.tenants import OBJECT_LABELS
from limpet.base.errors import LimpetError
from limpet.cloud.workloads.policy_source import PolicySource
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.kinds.policies import NamespaceView, PodView, PolicyView
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.kubernetes.watch_event import Unreadable
from limpet.policies.compiler import compile_sides
from limpet.policies.heard import ReadPolicies, decode_heard
from limpet.policies.policy import Key, PolicyPod
from tests.beds.rogue import STREAM, answer, serving, take_request
from tests.waiting import until

NAMESPACE: dict[str, Any] = {"metadata": {"name": "shop", "uid": "1", "resourceVersion": "10"}}


def policy(name: str, spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "10"}
    return {"metadata": metadata, "spec": spec}


DOORS = policy("doors", {"podSelector": {}})


def hear(
    heard: ReadPolicies,
    path: Path,
    *policies: dict[str, Any],
    becomes: Callable[[], bool],
    namespaces: Sequence[dict[str, Any]] = (NAMESPACE,),
    pods: Sequence[dict[str, Any]] = (),
) -> None:
    """A server's whole list, until it has become so."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            if "watch=1" in target:
                writer.write(STREAM)
                await writer.drain()
                await reader.read()  # until the other goes
                return
            of = target.partition("?")[0].rpartition("/")[2]
            items = {"networkpolicies": policies, "namespaces": namespaces, "pods": pods}[of]
            listed = {"metadata": {"resourceVersion": "10"}, "items": [*items]}
            writer.write(answer(json.dumps(listed).encode()))
            await writer.drain()

    async def scenario() -> None:
        async with serving(talk, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            source = PolicySource(
                heard, path, lambda: access, tell=ignore, random=lambda: 0.0, gather_s=0.0
            )
            source.start()
            await until(becomes)
            await source.stop()

    asyncio.run(scenario())


def test_a_policy_that_cannot_be_read_any_more_goes_on_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    first = ReadPolicies()
    hear(first, path, DOORS, becomes=lambda: first.is_whole and bool(first.policies))
    heard = decode_heard(path.read_bytes())
    before = heard.policies[Key("shop", "doors")]

    broken = policy("doors", "closed"), policy("other", "closed")
    hear(heard, path, *broken, becomes=lambda: len(heard.problems) == 2)

    assert heard.policies[Key("shop", "doors")] == before
    assert "goes on as it was" in heard.problems[Key("shop", "doors")]
    assert "all pods of shop are closed" in heard.problems[Key("shop", "other")]


def test_a_policy_that_nobody_has_room_to_know_closes_its_namespace_until_it_has(
    tmp_path: Path,
) -> None:
    """It was kept before: what it allowed or closed counts no more, and nothing is opened."""
    heard, key = ReadPolicies(), Key("shop", "doors")
    view = PolicyView(metadata=Metadata(namespace="shop", name="doors"), spec={"podSelector": {}})

    async def scenario() -> None:
        source = PolicySource(
            heard, tmp_path / "kept", no_access, tell=ignore, random=lambda: 0.0, gather_s=0.0
        )
        await source._hear_policies(ObjectChanges(put=[view], listed=True))
        assert list(heard.policies) == [key]

        crowded: ObjectChanges[PolicyView] = ObjectChanges(
            crowded={("shop", "doors"): "too many"}, listed=True
        )
        await source._hear_policies(crowded)
        assert heard.closed_namespaces == ["shop"]
        assert key not in heard.policies
        await source._hear_policies(crowded)
        assert heard.closed_namespaces == ["shop"]

        await source._hear_policies(ObjectChanges(put=[view], listed=True))
        assert list(heard.policies) == [key]
        await source.stop()

    asyncio.run(scenario())


def test_a_namespace_is_open_once_all_that_had_no_room_is_gone_or_fits(tmp_path: Path) -> None:
    """Also before the next list: its name may be used again long before."""
    heard = ReadPolicies()
    specs: list[dict[str, Any]] = [{"ingress": [{}] * 9_000}, {}]
    large, small = (
        PolicyView(
            metadata=Metadata(namespace="shop", name="large"), spec={"podSelector": {}, **spec}
        )
        for spec in specs
    )
    crowded: ObjectChanges[PolicyView] = ObjectChanges(
        crowded={("shop", name): "too many" for name in ("one", "large")}
    )

    async def scenario() -> None:
        source = PolicySource(
            heard, tmp_path / "kept", no_access, tell=ignore, random=lambda: 0.0, gather_s=0.0
        )
        heard.close_namespace("old", "as an agent before knew")
        await source._hear_policies(crowded)
        await source._hear_policies(ObjectChanges(gone=[("shop", "one"), ("shop", "large")]))
        assert heard.closed_namespaces == ["old", "shop"]  # what else there is nobody has told

        await source._hear_policies(ObjectChanges(listed=True))
        assert heard.closed_namespaces == []
        await source._hear_policies(crowded)
        await source._hear_policies(ObjectChanges(gone=[("shop", "one")]))
        assert heard.closed_namespaces == ["shop"]
        await source._hear_policies(ObjectChanges(put=[large]))
        assert heard.closed_namespaces == []  # what it may allow is closed by itself
        await source._hear_policies(ObjectChanges(crowded={("shop", "large"): "too many"}))
        await source._hear_policies(ObjectChanges(put=[small]))
        assert heard.closed_namespaces == []
        await source._hear_policies(
            ObjectChanges(crowded={("shop", "large"): "too many"}, listed=True)
        )
        assert heard.closed_namespaces == ["shop"]
        await source._hear_policies(ObjectChanges(gone=[("shop", "large")]))
        assert heard.closed_namespaces == []
        await source.stop()

    asyncio.run(scenario())


def test_pods_and_namespaces_that_nobody_has_room_to_know_are_in_no_policys_peers(
    tmp_path: Path,
) -> None:
    heard = ReadPolicies()
    pod = PodView(metadata=Metadata(namespace="shop", name="web"))
    space = NamespaceView(metadata=Metadata(name="shop"))

    async def scenario() -> None:
        source = PolicySource(
            heard, tmp_path / "kept", no_access, tell=ignore, random=lambda: 0.0, gather_s=0.0
        )
        await source._hear_namespaces(ObjectChanges(put=[space], listed=True))
        await source._hear_pods(ObjectChanges(put=[pod], listed=True))
        assert list(heard.pods) == [Key("shop", "web")]
        assert not heard.passes_over_namespaces

        await source._hear_pods(ObjectChanges(crowded={("shop", "web"): "too many"}))
        assert not heard.pods
        await source._hear_namespaces(ObjectChanges(crowded={("", "shop"): "too many"}))
        assert not heard.namespaces
        assert heard.passes_over_namespaces
        await source.stop()

    asyncio.run(scenario())


def test_a_pod_that_cannot_be_read_any_more_is_no_peer_and_a_person_is_told(
    tmp_path: Path,
) -> None:
    """Its address may be another's when it has ended, which nobody can read then."""
    heard, key = ReadPolicies(), Key("shop", "web")
    pod = PodView(metadata=Metadata(namespace=key.namespace, name=key.name))
    unread = Unreadable("web", "257 labels", namespace="shop")

    async def scenario() -> None:
        source = PolicySource(
            heard, tmp_path / "kept", no_access, tell=ignore, random=lambda: 0.0, gather_s=0.0
        )
        await source._hear_pods(ObjectChanges(put=[pod], listed=True))
        assert list(heard.pods) == [key]

        await source._hear_pods(ObjectChanges(unreadable=[unread]))
        assert not heard.pods
        (words,) = source.unread_pods
        assert "shop/web cannot be read: 257 labels; it is nobody's peer" in words
        await source._hear_pods(ObjectChanges(unreadable=[unread], listed=True))
        assert source.unread_pods == [words]
        await source._hear_pods(ObjectChanges(put=[pod]))
        assert list(heard.pods) == [key]
        assert source.unread_pods == []
        await source.stop()

    asyncio.run(scenario())


def no_access() -> Access:
    raise LimpetError("nobody is asked")


def ignore(_why: str) -> None:
    """Nobody is there to be told."""


def test_labels_that_a_namespace_which_nobody_could_read_might_have_open_nothing(
    tmp_path: Path,
) -> None:
    """A selector for the lack of a label takes no pods of it, also after a restart."""
    lacks = {"matchExpressions": [{"key": "bad", "operator": "DoesNotExist"}]}
    ingress = [{"from": [{"namespaceSelector": lacks}]}]
    labels = {"bad": "yes", **{f"l{number}": "x" for number in range(OBJECT_LABELS.most)}}
    strange: dict[str, Any] = {"metadata": {**NAMESPACE["metadata"], "name": "strange", "uid": "2"}}
    peer: dict[str, Any] = {
        "metadata": {"namespace": "strange", "name": "p", "uid": "3", "resourceVersion": "10"},
        "status": {"podIPs": [{"ip": "10.0.0.9"}]},
    }
    web = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"),), {})
    pods = [peer, {"metadata": {**DOORS["metadata"], "name": "web", "uid": "4"}}]
    for found, path, is_open in ((labels, tmp_path / "many", False), ({}, tmp_path / "few", True)):
        strange["metadata"]["labels"] = found
        heard = ReadPolicies()
        hear(
            heard,
            path,
            policy("doors", {"podSelector": {}, "ingress": ingress}),
            namespaces=(NAMESPACE, strange),
            pods=pods,
            becomes=lambda heard=heard: heard.is_whole,  # type: ignore[misc]
        )
        for each in (heard, decode_heard(path.read_bytes())):
            world = each.world({web.key: web})
            sides = compile_sides(world, [world.pods[web.key]])
            allowed = sides.allows(web.key, "ingress", ip_address("10.0.0.9"), "tcp", 80)
            assert bool(allowed) == is_open
