"""An address that a pod asks for is not taken from another one that lives."""

from __future__ import annotations

from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod

WISH = "IgnoreUnknown=1;IP=10.244.7.50,fd00:7::50;K8S_POD_NAMESPACE=default;K8S_POD_NAME="


def has_eth0(pod: LabPod) -> bool:
    return "eth0" in pod.run("ip", "-o", "link")


def test_a_pod_whose_guest_has_its_address_keeps_it_and_its_interface_until_it_is_gone(
    node: LabNode,
) -> None:
    vm, other = node.pod("vm"), node.pod("other")
    vm.add(args=WISH + "vm")
    vm.run("ip", "address", "flush", "dev", "eth0")

    refused = node.cni("ADD", other, args=WISH + "other")

    assert refused.exit_code
    assert "container vm holds it" in refused.document["msg"]
    assert has_eth0(vm)

    newer = node.pod("vm", container_id="vm-2")
    newer.add(args=WISH + "vm")
    assert not has_eth0(vm)  # an older sandbox of the same pod gives way

    newer.remove()  # as a runtime that crashed leaves it: no DEL
    other.add(args=WISH + "other")
    assert [str(each.ip) for each in other.addresses] == ["10.244.7.50", "fd00:7::50"]
