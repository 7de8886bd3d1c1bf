"""A Service on a real cluster: two pods serve it, two others ask it by name twenty times a second,
one by nftables and one at the socket, and each request that fails is explained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.command import side_by_side
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.world import KubeWorld
from limpet.lab.process import Daemon
from limpet.lab.topology import parse_topology
from tests.kube.installed.cluster import (
    CONTROL_PLANE,
    ask,
    import_image,
    install_service,
    rollout,
    running_pods,
    start_service,
)
from tests.kube.installed.test_manifests import MANIFEST, SPACE
from tests.kube.services.image_before import IMAGE as IMAGE_BEFORE
from tests.kube.services.image_before import image_before
from tests.kube.services.service_day import (
    ASKER,
    HOLDER,
    IMAGE,
    NAME,
    NODE_CGROUP,
    ON,
    Account,
    Request,
    end_client,
    eventually,
    is_served,
    manifest_with_services,
    mount_bpffs,
    names_of,
    now_s,
    requests_of,
    rounds_of,
    servers,
    start_client,
    start_names,
)

pytestmark = pytest.mark.timeout(1500)  # the image is built, four kubelets start

TOPOLOGY = """
kubernetes = true
bare = true
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24"]
nodes = { crane-1 = 0, crane-2 = 0, crane-3 = 0, crane-4 = 0 }
"""
HELD = 1000
_UPGRADED = ("deployment/limpet-controller", "daemonset/limpet-agent", "daemonset/limpet-dns")
"""In this order, as docs/operations.md says."""
Clients = Sequence[KubeMachine]
_SERVES = ("crane-2", "crane-3")
_ASKS = {"crane-1": "nftables", "crane-4": "ebpf"}
"""By what they are served: on the others is no bpffs."""
_TO_NOBODY = {
    "timed out",
    "[Errno 101] Network is unreachable",
    "[Errno 113] No route to host",
}
_OUT_S = 12.0
"""Seconds until an endpoint of a dead node is out of rotation: four times what is promised."""
_LOST = 4
"""Requests of one pod that may have failed by then, which come one after the other: as many as
wait three seconds each for nobody. One at most was seen."""
_UNTOLD = "name resolution"
_ENDED = "[Errno 103] Software caused connection abort"
"""At the socket, a connection that tries when its endpoint is found dead."""
_CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "closed"},
    "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
}


@pytest.fixture
def world(tmp_path: Path, archive: Path) -> Iterator[KubeWorld]:
    """Limpet is applied with Services and policies on, at the socket where that works, in the
    version before this one; two pods serve, none asks yet."""
    name = f"v{os.getpid()}"
    made = KubeWorld(parse_topology(TOPOLOGY, name, "a test"), name, tmp_path / name)
    try:
        made.up()
        for image in (archive, image_before(tmp_path / "before")):
            side_by_side(partial(import_image, archive=image), made.kube_machines)
        mount_bpffs_where_asked(made.kube_machines)
        kubectl = made.plane.kubectl
        kubectl("label", "node", "crane-3", f"{CONTROL_PLANE}=")
        kubectl("label", "nodes", *_SERVES, "serves=web")
        dns = (MANIFEST.parent / "dns.yaml").read_text()
        for text in (manifest_with_services(made, backend="auto"), dns):
            kubectl("apply", "-f", "-", stdin=text.replace(IMAGE, IMAGE_BEFORE))
        made.await_ready()
        items = {"apiVersion": "v1", "kind": "List", "items": servers("web", _SERVES)}
        kubectl("apply", "-f", "-", stdin=json.dumps(items))
        rollout(made, "deployment/web", "default")
        for each in _UPGRADED:
            rollout(made, each)
        yield made
    finally:
        made.down()


def mount_bpffs_where_asked(machines: Iterable[KubeMachine]) -> None:
    for machine in machines:
        if _ASKS.get(machine.label) == "ebpf":
            mount_bpffs(machine)


def rotation(machine: KubeMachine) -> dict[str, int]:
    """Weights of the Service's endpoints on this node, by the node that they are on."""
    try:
        shown = ask(machine, "service", name="default/web")["endpoints"]
    except LimpetError:
        return {}  # the agent starts
    return {each["node"]: each["weight"] for each in shown}


def backend(machine: KubeMachine) -> str:
    """By what pods of this node are served."""
    try:
        return str(ask(machine, "services")["backend"])
    except LimpetError:
        return ""  # the agent starts


def version_of(machine: KubeMachine) -> str:
    """Of the agent that runs there."""
    return str(ask(machine, "picture")["viewer"]["version"])


def test_the_requests_that_fail_in_a_day_of_a_service_are_each_explained(
    world: KubeWorld, record_property: Callable[[str, object], None]
) -> None:
    clients = [machine for machine in world.kube_machines if machine.label in _ASKS]
    dying = world.machine("crane-2")
    assert isinstance(dying, KubeMachine)
    account = Account(record_property)
    for client in clients:
        eventually(lambda client=client: _is_ready(client), "both are in rotation")  # type: ignore[misc]
        start_client(client, "asker", ASKER, NAME)
    served(clients, 0.0, "it is served")

    upgrade(world, clients, account)
    policy(world, clients, account)
    death(world, clients, dying, account)
    names = {client.label: names_of(client) for client in clients}
    try:
        cut_off(world, clients, names, account)
    finally:
        for each in names.values():
            each.kill()


def _is_ready(client: KubeMachine) -> bool:
    both = dict.fromkeys(_SERVES, 1)
    return rotation(client) == both and backend(client) == _ASKS[client.label]


def served(clients: Clients, since_s: float, what: str) -> None:
    """Returns when the last requests of each since then were answered."""
    for client in clients:
        eventually(lambda client=client: is_served(client, since_s), f"{client.label}: {what}")  # type: ignore[misc]


def close(
    account: Account, chapter: str, clients: Clients, since_s: float
) -> dict[str, list[Request]]:
    """The requests since then that failed, told, by what served their node."""
    return {
        by: account.close(f"{chapter} ({by})", requests_of(client, since_s=since_s))
        for client in clients
        for by in [_ASKS[client.label]]
    }


def upgrade(world: KubeWorld, clients: Clients, account: Account) -> None:
    """The version before is replaced by this one, under connections that are held: none is lost,
    no request fails."""
    for client in clients:
        start_client(client, "holder", HOLDER, NAME, str(HELD))
    for client in clients:
        eventually(lambda client=client: rounds_of(client), f"{HELD} connections are held")  # type: ignore[misc]
    began_s, rounds = now_s(), [len(rounds_of(client)) for client in clients]
    [before] = {version_of(machine) for machine in world.kube_machines}

    for each in _UPGRADED:
        world.plane.kubectl("set", "image", each, f"*={IMAGE}", "-n", SPACE)
        rollout(world, each)
    [now] = {version_of(machine) for machine in world.kube_machines}
    assert now != before
    ended_s = now_s()
    for client, asked in zip(clients, rounds, strict=True):
        eventually(
            lambda client=client: rounds_of(client)[-1].began_s > ended_s,  # type: ignore[misc]
            "asked on all once more",
        )
        during = rounds_of(client)[asked:]
        assert [each for each in during if each.failed or each.count != HELD] == []
        assert backend(client) == _ASKS[client.label]
    chapter = f"upgraded from {before} under {HELD} connections, none lost"
    failed = close(account, chapter, clients, began_s)
    assert not any(failed.values()), failed
    for client in clients:
        end_client(client, "holder")


def policy(world: KubeWorld, clients: Clients, account: Account) -> None:
    """Nothing gets in while it is closed; nothing fails before and after."""
    began_s = now_s()
    served(clients, began_s, "it is served")
    closed_s = now_s()
    world.plane.kubectl("apply", "-f", "-", stdin=json.dumps(_CLOSED))
    # Each of the two nodes hears of it by itself.
    eventually(
        lambda: all(_has_policies(world, name) for name in _SERVES), "both nodes have the policy"
    )
    heard_s = now_s()
    eventually(lambda: all(_refuses(each, heard_s) for each in clients), "it is closed")
    shut_s = now_s()
    eventually(lambda: all(_refuses(each, shut_s) for each in clients), "it stays closed")
    opened_s = now_s()
    world.plane.kubectl("delete", "networkpolicy", "closed")
    served(clients, opened_s, "it is open again")

    for failed in close(
        account, "a policy closes it and another word opens it", clients, began_s
    ).values():
        assert {each.why for each in failed} == {"timed out"}
        assert all(closed_s <= each.ended_s for each in failed)
    for client in clients:
        shut = [x for x in requests_of(client, since_s=shut_s) if x.ended_s < opened_s]
        assert [each for each in shut if each.said] == []


def _has_policies(world: KubeWorld, node: str) -> bool:
    machine = world.machine(node)
    assert isinstance(machine, KubeMachine)
    return bool(ask(machine, "policy.list")["policies"])


def _refuses(client: KubeMachine, since_s: float) -> bool:
    """Three requests since then, and none of them was answered."""
    last = requests_of(client, since_s=since_s)[-3:]
    return len(last) == 3 and not any(each.said for each in last)


def death(world: KubeWorld, clients: Clients, dying: KubeMachine, account: Account) -> None:
    """Few requests fail until the node's endpoint is out of rotation, which is soon, and none
    later."""
    began_s = now_s()
    dying.power_off()
    dead_s = now_s()
    eventually(
        lambda: not any(rotation(each).get(dying.label, 0) for each in clients),
        "the node is out of rotation",
    )
    out_s = now_s()
    assert out_s - dead_s < _OUT_S
    served(clients, out_s, "the other pod serves all")
    steady_s = now_s()
    chapter = f"an endpoint's node dies, out of rotation after {out_s - dead_s:.1f} s"
    for by, failed in close(account, chapter, clients, began_s).items():
        # What was under way as the server ended, and what was sent to nobody.
        late = [each for each in failed if each.began_s > dead_s]
        assert {each.why for each in late} <= {*_TO_NOBODY, *([_ENDED] if by == "ebpf" else [])}
        assert len(late) <= _LOST
        # The agent says so at once, and has it in the kernel by the round that follows.
        assert len([each for each in late if each.began_s > out_s]) <= 1
    for client in clients:
        eventually(
            lambda client=client: len(requests_of(client, since_s=steady_s)) > 20,  # type: ignore[misc]
            "it asks on",
        )
        assert [each for each in requests_of(client, since_s=steady_s) if not each.said] == []

    on_s = now_s()
    dying.power_on()
    eventually(lambda: dying.label in world.ready_nodes(), "it is Ready again")
    rollout(world, "deployment/web", "default")
    eventually(lambda: all(map(_is_ready, clients)), "its pod is in rotation")
    back_s = now_s()
    names = {each.name for each in running_pods(world, "web", 2).values()}
    for client in clients:
        eventually(
            lambda client=client: (  # type: ignore[misc]
                {each.said for each in requests_of(client, since_s=back_s)} >= names
            ),
            "its pod serves again",
        )
    served(clients, back_s, "all are served")
    chapter = f"the node comes back, in rotation after {back_s - on_s:.1f} s"
    for failed in close(account, chapter, clients, on_s).values():
        # The node may answer before its pod does, and before anybody was told that this is not
        # ready.
        assert {each.why for each in failed} <= {*_TO_NOBODY, "[Errno 111] Connection refused"}
        assert [each for each in failed if each.began_s > back_s] == []


def cut_off(
    world: KubeWorld, clients: Clients, names: Mapping[str, Daemon], account: Account
) -> None:
    """The askers' nodes, whose agents and names are services, reboot while their site is cut
    off, for so long that the API server calls no pod there ready: it says so first of all when the
    site is back, and nobody is refused for it."""
    pods_s = now_s()
    side_by_side(lambda client: hand_over(world, client, names[client.label]), clients)
    before_s = now_s()
    served(clients, before_s, "the agent as a service serves it")
    chapter = "agent and names become services of the node"
    for untold in close(account, chapter, clients, pods_s).values():
        # Names are told by nobody from the end of their pod until the service of the node starts.
        assert all(each.has_lost_a_question or _UNTOLD in each.why for each in untold)
        assert [each for each in untold if each.began_s > before_s] == []
    for client in clients:
        kept = client.system.path("/var/lib/limpet/cluster/services.jsonl")
        eventually(lambda kept=kept: b'"web"' in kept.read_bytes(), "it is on the disk")  # type: ignore[misc]
    world.cut("harbour")
    try:
        cut_s = now_s()
        served(clients, cut_s, "it is served while cut off")
        failed = close(account, "its site is cut off", clients, before_s)
        assert not any(failed.values()), failed

        world.reboot(clients)
        mount_bpffs_where_asked(clients)
        boot_s = now_s()
        side_by_side(lambda client: boot(client, names[client.label]), clients)
        served(clients, boot_s, "it is served after the boot")
        for client in clients:
            assert not ask(client, "services")["connected"]
            assert backend(client) == _ASKS[client.label]
        failed = close(account, "its node reboots while cut off", clients, boot_s)
        assert not any(failed.values()), failed
        eventually(lambda: _is_given_up(world), "the server calls no pod ready")
        given_up_s = now_s()
        served(clients, given_up_s, "it is served while the server calls no pod ready")
    finally:
        world.restore("harbour")
    eventually(
        lambda: all(ask(each, "services")["connected"] for each in clients),
        "they hear the API server again",
    )
    world.await_ready()
    heard_s = now_s()
    served(clients, heard_s, "it is served")
    failed = close(account, "its site is back, of which no pod was called ready", clients, boot_s)
    assert not any(failed.values()), failed


def _is_given_up(world: KubeWorld) -> bool:
    """The API server calls no pod ready that serves."""
    select = ("-l", "kubernetes.io/service-name=web", "-o", "json")
    told = json.loads(world.plane.kubectl("get", "endpointslices", *select))
    states = [x["conditions"]["ready"] for each in told["items"] for x in each["endpoints"]]
    return len(states) == len(_SERVES) and not any(states)


def boot(machine: KubeMachine, names: Daemon) -> None:
    """Services of a node whose kubelet has started already."""
    names.kill()  # what it was has ended with the node
    start_names(machine, names)
    start_service(machine)


def hand_over(world: KubeWorld, machine: KubeMachine, names: Daemon) -> None:
    """From the DaemonSet's pod to a service of the node, as docs/kubernetes.md advises."""
    kubectl = world.plane.kubectl
    kubectl("label", "node", machine.label, "limpet.dev/agent=systemd")
    for component in ("agent", "dns"):
        kubectl(
            *("wait", "--for=delete", "pod", "-n", SPACE, "--timeout=120s"),
            *("-l", f"app.kubernetes.io/component={component}"),
            f"--field-selector=spec.nodeName={machine.label}",
        )
    install_service(world, machine)
    config = machine.system.path("/etc/limpet/agent.toml").read_text()
    config += f'policies = "on"\n{ON}services_backend = "{_ASKS[machine.label]}"\n'
    config += f'services_cgroup = "{NODE_CGROUP}"\n'
    machine.system.write("/etc/limpet/agent.toml", config)
    start_service(machine)
    start_names(machine, names)
