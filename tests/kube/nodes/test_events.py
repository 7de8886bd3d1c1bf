"""What a person sees with `kubectl describe node`, told by a real controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.cluster import api
from limpet.controller.orchestrator.event_backlog import About, node
from limpet.controller.orchestrator.events import COMPONENT, Events
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member
from tests.controller.machines import Controller, Node, Refusal
from tests.kube.definitions import OURS, wait_until_served
from tests.waiting import until, wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
NAMESPACE = "limpet-system"


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    api.kubectl("apply", "-f", str(CRDS))
    wait_until_served(api, *OURS)
    api.kubectl("create", "namespace", NAMESPACE)
    return api


@pytest.fixture(name="controller")
def _controller(plane: ControlPlane, tmp_path: Path) -> Iterator[Controller]:
    found = Controller(
        tmp_path / "c",
        store="kubernetes",
        kubeconfig=str(plane.kubeconfig),
        namespace=NAMESPACE,
        pod_cidrs=["10.0.0.0/29"],
        segment_length_v4=30,
        quarantine_s=0,  # both segments are taken and given back before the next test
    )
    found.start()
    try:
        wait_until(lambda: "event=ready" in found.log.read_text(), "it leads")
        yield found
    finally:
        found.kill_if_it_runs()


def make_node(plane: ControlPlane, name: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    plane.kubectl("apply", "-f", "-", stdin=text)


def described(plane: ControlPlane, name: str, *words: str) -> str:
    """What `kubectl describe node` says of Events, as soon as it says these words."""

    def look() -> str | None:
        said = str(plane.kubectl("describe", "node", name)).partition("Events:")[2]
        return said if all(each in said for each in words) else None

    return str(wait_until(look, f"{name}: {words}"))


def test_a_node_s_life_is_told_on_its_node(plane: ControlPlane, controller: Controller) -> None:
    for name in ("one", "two", "three"):
        make_node(plane, name)

    async def work() -> None:
        one, two, three = (Node(controller.url, name) for name in ("one", "two", "three"))
        await one.join(await asyncio.to_thread(controller.token))
        segment = str(one.grant.segments[0])
        await asyncio.to_thread(described, plane, "one", "Joined", one.uid, segment)
        token = await asyncio.to_thread(controller.token)
        await one.request_segments(4)
        await asyncio.to_thread(described, plane, "one", "SegmentsGranted")
        with pytest.raises(Refusal):
            await one.request_segments(4)
        await asyncio.to_thread(described, plane, "one", "Warning", "SegmentsRefused", "used up")
        with pytest.raises(Refusal):
            await two.join(token)
        await asyncio.to_thread(described, plane, "two", "Warning", "JoinRefused")
        with pytest.raises(Refusal):
            await three.join(token, proof=b"x" * 64)
        await asyncio.to_thread(described, plane, "three", "JoinRefused", "does not hold the key")
        await asyncio.to_thread(controller.ask, "node.remove", node="one")
        said = await asyncio.to_thread(described, plane, "one", "Removed", "new key")
        assert COMPONENT in said
        await one.close()

    asyncio.run(work())


def test_repeated_ones_are_counted_and_long_or_odd_names_are_no_trouble(
    plane: ControlPlane,
) -> None:
    async def work() -> None:
        client = Client(find_access(plane.kubeconfig))
        events = Events(client)
        task = asyncio.create_task(events.run())
        for _ in range(3):
            events.tell(node("n" * 253), "Joined", "x" * 5000)
        events.tell(About("Node", "Odd_Name..é", "u"), "Joined", "odd")
        events.tell(About("Pod", "web", "u2", "v1", "nowhere"), "Joined", "no such namespace")
        events.tell(node("last"), "Joined", "told")

        def all_of(reason: str) -> list[dict[str, Any]] | None:
            text = plane.kubectl(
                *("get", "events", "-A", "-o", "json", f"--field-selector=reason={reason}")
            )
            items = json.loads(text)["items"]
            return items if any(each["message"] == "told" for each in items) else None

        found = await asyncio.to_thread(wait_until, lambda: all_of("Joined"))
        assert found is not None
        by_object = {each["involvedObject"]["name"]: each for each in found}
        assert by_object["n" * 253]["count"] == 3
        long = by_object["n" * 253]["message"]
        assert (512 < len(long) <= 1024, long[-17:]) == (True, " more characters)")
        assert by_object["Odd_Name..é"]["message"] == "odd"
        assert events.dropped == 1
        task.cancel()
        client.close()
        await asyncio.sleep(0)

    asyncio.run(work())


def test_a_controller_without_the_right_to_write_events_works_all_the_same(
    plane: ControlPlane,
) -> None:
    async def work() -> None:
        client = Client(find_access(plane.write_kubeconfig("mute", "mute")))
        events = Events(client)
        task = asyncio.create_task(events.run())
        events.tell(node("one"), "Joined", "nobody will read it")
        await until(lambda: events.dropped)
        assert not task.done()
        task.cancel()
        client.close()
        await asyncio.sleep(0)

    asyncio.run(work())


def condition(plane: ControlPlane, kind: str, name: str, of: str) -> str:
    """Status and reason; empty: it has none."""
    path = f'{{.status.conditions[?(@.type=="{of}")]'
    template = f"jsonpath={path}.status}} {path}.reason}}"
    return str(plane.kubectl("get", kind, name, "-o", template)).strip()


def apply(plane: ControlPlane, kind: str, name: str, spec: dict[str, Any]) -> None:
    head = {"apiVersion": "limpet.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps({**head, "spec": spec}))


def test_all_four_resources_have_conditions_that_are_written_when_something_turns(
    plane: ControlPlane, controller: Controller
) -> None:
    def becomes(kind: str, name: str, of: str, wanted: str) -> None:
        wait_until(lambda: condition(plane, kind, name, of) == wanted, f"{kind} {name} {of}")

    async def work() -> None:
        node = Node(controller.url, "five")
        await node.join(await asyncio.to_thread(controller.token))
        await node.publish()
        for kind, name, of, wanted in (
            ("clusternetwork", "default", "Ready", "True Signed"),
            ("clusternetwork", "default", "Granting", "True Granting"),
            ("nodegrant", "five", "Ready", "True Granted"),
            ("nodegrant", "five", "SegmentsLeft", "True WithinQuota"),
            ("nodepresence", "five", "Signed", "True Signed"),
            ("nodepresence", "five", "UnderItsGrant", "True Granted"),
            ("nodepresence", "five", "IdentityUnique", "True Unique"),
        ):
            await asyncio.to_thread(becomes, kind, name, of, wanted)

        def version() -> str:
            template = "jsonpath={.metadata.resourceVersion}"
            return str(plane.kubectl("get", "nodegrant", "five", "-o", template))

        # A presence that says something else turns no condition: nothing is written.
        before = await asyncio.to_thread(version)
        await node.publish()
        await asyncio.to_thread(apply, plane, "Community", "nobody", {"members": ["six"]})
        await asyncio.to_thread(becomes, "community", "nobody", "Ready", "False NamesNobody")
        assert await asyncio.to_thread(version) == before

        def described_community() -> str:
            return str(plane.kubectl("describe", "community", "nobody")).partition("Events:")[2]

        await asyncio.to_thread(
            wait_until, lambda: "NamesNobody" in described_community(), "an Event on it"
        )
        await asyncio.to_thread(apply, plane, "Community", "nobody", {"members": ["five"]})
        await asyncio.to_thread(becomes, "community", "nobody", "Ready", "True Granted")
        await asyncio.to_thread(
            wait_until, lambda: "ReadyAgain" in described_community(), "an Event on it"
        )
        shown = await asyncio.to_thread(plane.kubectl, "get", "nodepresences,nodegrants,cnet")
        assert "SIGNED" in shown
        await node.close()

    asyncio.run(work())


def put_pod(plane: ControlPlane, name: str, node: str, address: str) -> None:
    """A pod as a kubelet would tell of it."""
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "apart"}}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps({**head, "spec": spec}))
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    words = ("-n", "apart", "--subresource=status", "--type=merge", "-p")
    plane.kubectl("patch", "pod", name, *words, json.dumps({"status": status}))


def test_an_address_that_two_live_pods_hold_is_told_everywhere_and_ends_when_it_is_over(
    plane: ControlPlane, controller: Controller, tmp_path: Path
) -> None:
    """One pod is of Limpet, whose agent reports it, the other of another network. Both nodes hear
    it from the controller, of which they hear all else."""

    def becomes(kind: str, name: str, wanted: str) -> None:
        def is_so() -> bool:
            return condition(plane, kind, name, "PodAddressesUnique") == wanted

        wait_until(is_so, f"{kind} {name}")

    def events_of(pod: str) -> str:
        found = plane.kubectl("describe", "pod", pod, "-n", "apart")
        return str(found).partition("Events:")[2]

    for each in controller.ask("node.list")["nodes"]:  # there are segments for two
        if each["state"] != "removed":
            controller.ask("node.remove", node=each["uid"])

    async def work() -> None:
        node = Node(controller.url, "six")
        await node.join(await asyncio.to_thread(controller.token))
        await node.publish()
        address = str(node.grant.segments[0].network_address + 2)
        held = api.InterfaceAddresses("limpet", "apart", "ours", "eth0", (address,))
        await node.report(1, [held], None)
        other = Member(tmp_path / "seven", "seven")
        await asyncio.to_thread(other.join, controller)

        def make() -> None:
            plane.kubectl("create", "namespace", "apart")
            plane.kubectl("create", "serviceaccount", "default", "-n", "apart")
            put_pod(plane, "theirs", "seven", address)
            put_pod(plane, "ours", "six", address)
            put_pod(plane, "alone", "six", "192.0.2.77")

        await asyncio.to_thread(make)
        await asyncio.to_thread(becomes, "nodepresence", "six", "False HeldTwice")
        await asyncio.to_thread(becomes, "clusternetwork", "default", "False HeldTwice")
        for pod in ("ours", "theirs"):
            await asyncio.to_thread(
                wait_until, lambda pod=pod: "AddressHeldTwice" in events_of(pod)
            )
        assert "AddressHeldTwice" not in await asyncio.to_thread(events_of, "alone")
        async with other.running() as running:
            await until(lambda: running.session.state.told)
            (words,) = running.session.state.told
            assert f"{address} by apart/ours on six and apart/theirs on seven" in words

            await asyncio.to_thread(
                plane.kubectl,
                *("delete", "pod", "theirs", "-n", "apart", "--force", "--grace-period=0"),
            )
            await asyncio.to_thread(becomes, "nodepresence", "six", "True Unique")
            await asyncio.to_thread(becomes, "clusternetwork", "default", "True Unique")
            await until(lambda: running.session.state.told == ())
        await asyncio.to_thread(controller.ask, "node.remove", node="seven")
        await node.close()

    asyncio.run(work())
