"""A Service on a real cluster: two pods serve it, another asks it by name twenty times a second,
and each request that fails is explained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
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
from tests.kube.services.service_day import (
    ASKER,
    HOLDER,
    NAME,
    ON,
    Account,
    end_client,
    eventually,
    is_served,
    manifest_with_services,
    names_of,
    now_s,
    requests_of,
    rounds_of,
    servers,
    start_client,
    start_names,
)

pytestmark = pytest.mark.timeout(1500)  # the image is built, three kubelets start

TOPOLOGY = """
kubernetes = true
bare = true
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24"]
nodes = { crane-1 = 0, crane-2 = 0, crane-3 = 0 }
"""
HELD = 1000
_SERVES = ("crane-2", "crane-3")
_TO_NOBODY = {
    "timed out",
    "[Errno 101] Network is unreachable",
    "[Errno 113] No route to host",
}
_CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "closed"},
    "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
}


@pytest.fixture
def world(tmp_path: Path, archive: Path) -> Iterator[KubeWorld]:
    """Limpet is applied with Services and policies on; two pods serve, none asks yet."""
    name = f"v{os.getpid()}"
    made = KubeWorld(parse_topology(TOPOLOGY, name, "a test"), name, tmp_path / name)
    try:
        made.up()
        side_by_side(lambda machine: import_image(machine, archive), made.kube_machines)
        kubectl = made.plane.kubectl
        kubectl("label", "node", "crane-3", f"{CONTROL_PLANE}=")
        kubectl("label", "nodes", *_SERVES, "serves=web")
        kubectl("apply", "-f", "-", stdin=manifest_with_services(made))
        kubectl("apply", "-f", str(MANIFEST.parent / "dns.yaml"))
        made.await_ready()
        items = {"apiVersion": "v1", "kind": "List", "items": servers("web", _SERVES)}
        kubectl("apply", "-f", "-", stdin=json.dumps(items))
        rollout(made, "deployment/web", "default")
        rollout(made, "daemonset/limpet-agent")
        rollout(made, "daemonset/limpet-dns")
        yield made
    finally:
        made.down()


def rotation(machine: KubeMachine) -> dict[str, int]:
    """Weights of the Service's endpoints on this node, by the node that they are on."""
    try:
        shown = ask(machine, "service", name="default/web")["endpoints"]
    except LimpetError:
        return {}  # the agent starts
    return {each["node"]: each["weight"] for each in shown}


def test_the_requests_that_fail_in_a_day_of_a_service_are_each_explained(
    world: KubeWorld, record_property: Callable[[str, object], None]
) -> None:
    client, dying, _ = (world.machine(f"crane-{number}") for number in (1, 2, 3))
    assert isinstance(client, KubeMachine)
    assert isinstance(dying, KubeMachine)
    account = Account(record_property)
    eventually(lambda: rotation(client) == dict.fromkeys(_SERVES, 1), "both are in rotation")
    start_client(client, "asker", ASKER, NAME)
    eventually(lambda: is_served(client, 0.0), "it is served")

    upgrade(world, client, account)
    policy(world, client, account)
    death(world, client, dying, account)
    names = names_of(client)
    try:
        cut_off(world, client, names, account)
    finally:
        names.kill()


def upgrade(world: KubeWorld, client: KubeMachine, account: Account) -> None:
    """Every agent's pod is replaced, under connections that are held: none is lost, no request
    fails."""
    start_client(client, "holder", HOLDER, NAME, str(HELD))
    eventually(lambda: rounds_of(client), f"{HELD} connections are held")
    began_s, rounds = now_s(), len(rounds_of(client))

    world.plane.kubectl("rollout", "restart", "daemonset/limpet-agent", "-n", SPACE)
    rollout(world, "daemonset/limpet-agent")
    ended_s = now_s()
    eventually(lambda: rounds_of(client)[-1].began_s > ended_s, "asked on all once more")

    during = rounds_of(client)[rounds:]
    assert [each for each in during if each.failed or each.count != HELD] == []
    failed = account.close(
        f"agents' pods replaced under {HELD} connections, none lost",
        requests_of(client, since_s=began_s),
    )
    assert failed == []
    end_client(client, "holder")


def policy(world: KubeWorld, client: KubeMachine, account: Account) -> None:
    """Nothing gets in while it is closed; nothing fails before and after."""
    began_s = now_s()
    eventually(lambda: is_served(client, began_s), "it is served")
    closed_s = now_s()
    world.plane.kubectl("apply", "-f", "-", stdin=json.dumps(_CLOSED))
    # Each of the two nodes hears of it by itself.
    eventually(
        lambda: all(_has_policies(world, name) for name in _SERVES), "both nodes have the policy"
    )
    heard_s = now_s()
    eventually(lambda: _refuses(client, heard_s), "it is closed")
    shut_s = now_s()
    eventually(lambda: _refuses(client, shut_s), "it stays closed")
    opened_s = now_s()
    world.plane.kubectl("delete", "networkpolicy", "closed")
    eventually(lambda: is_served(client, opened_s), "it is open again")

    failed = account.close(
        "a policy closes it and another word opens it", requests_of(client, since_s=began_s)
    )
    assert {each.why for each in failed} == {"timed out"}
    assert all(closed_s <= each.ended_s for each in failed)
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


def death(world: KubeWorld, client: KubeMachine, dying: KubeMachine, account: Account) -> None:
    """Half of the requests fail until the node's endpoint is out of rotation, and none later."""
    began_s = now_s()
    dying.power_off()
    dead_s = now_s()
    eventually(lambda: not rotation(client).get(dying.label, 0), "the node is out of rotation")
    out_s = now_s()
    eventually(lambda: is_served(client, out_s), "the other pod serves all")
    steady_s = now_s()
    failed = account.close(
        f"an endpoint's node dies, out of rotation after {out_s - dead_s:.1f} s",
        requests_of(client, since_s=began_s),
    )
    # What was under way as the server ended, and what was sent to nobody.
    late = [each for each in failed if each.began_s > dead_s]
    assert {each.why for each in late} <= _TO_NOBODY
    eventually(lambda: len(requests_of(client, since_s=steady_s)) > 20, "it asks on")
    assert [each for each in requests_of(client, since_s=steady_s) if not each.said] == []

    on_s = now_s()
    dying.power_on()
    eventually(lambda: dying.label in world.ready_nodes(), "it is Ready again")
    rollout(world, "deployment/web", "default")
    eventually(lambda: rotation(client) == dict.fromkeys(_SERVES, 1), "its pod is in rotation")
    back_s = now_s()
    names = {each.name for each in running_pods(world, "web", 2).values()}
    eventually(
        lambda: {each.said for each in requests_of(client, since_s=back_s)} >= names,
        "its pod serves again",
    )
    eventually(lambda: is_served(client, back_s), "all are served")
    failed = account.close(
        f"the node comes back, in rotation after {back_s - on_s:.1f} s",
        requests_of(client, since_s=on_s),
    )
    # The node may answer before its pod does, and before anybody was told that this is not ready.
    assert {each.why for each in failed} <= {*_TO_NOBODY, "[Errno 111] Connection refused"}
    assert [each for each in failed if each.began_s > back_s] == []


def cut_off(world: KubeWorld, client: KubeMachine, names: Daemon, account: Account) -> None:
    """The asker's node, whose agent and names are services, reboots while its site is cut off."""
    hand_over(world, client, names)
    before_s = now_s()
    eventually(lambda: is_served(client, before_s), "the agent as a service serves it")
    kept = client.system.path("/var/lib/limpet/cluster/services.jsonl")
    eventually(lambda: b'"web"' in kept.read_bytes(), "it is on the disk")
    world.cut("harbour")
    try:
        cut_s = now_s()
        eventually(lambda: is_served(client, cut_s), "it is served while cut off")
        assert account.close("its site is cut off", requests_of(client, since_s=before_s)) == []

        world.reboot([client])
        names.kill()  # what it was has ended with the node
        boot_s = now_s()
        start_names(client, names)
        start_service(client)
        eventually(lambda: is_served(client, boot_s), "it is served after the boot")
        assert not ask(client, "services")["connected"]
        failed = account.close(
            "its node reboots while cut off", requests_of(client, since_s=boot_s)
        )
        assert failed == []
    finally:
        world.restore("harbour")
    eventually(lambda: ask(client, "services")["connected"], "it hears the API server again")
    heard_s = now_s()
    eventually(lambda: is_served(client, heard_s), "it is served")
    assert account.close("its site is back", requests_of(client, since_s=boot_s)) == []


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
    machine.system.write("/etc/limpet/agent.toml", config + 'policies = "on"\n' + ON)
    start_service(machine)
    start_names(machine, names)
