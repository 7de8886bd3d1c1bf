"""A node whose Services are served at the socket, or cannot be, and what an uninstall leaves."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from limpet.linux.namespaces import Namespace
from tests.beds.services.service_api import ServiceApi, service, slices
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_doctor_fix import found
from tests.cli.install.test_install import CONFIG, LIMPET, limpet
from tests.cli.install.test_install_join import cluster_of
from tests.waiting import wait_until

BPFFS = "/sys/fs/bpf"


def mount_bpffs(machine: ServiceMachine, *options: str) -> None:
    machine.run("mount", "-t", "bpf", *options, "bpf", BPFFS)


def install_with_ebpf_asked_for(machine: ServiceMachine) -> None:
    """A node that has heard of a Service and has tried to serve it at the socket."""
    cgroup = next(
        each
        for each in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
        if machine.path(f"{each}/cgroup.controllers").exists()
    )
    settings = {"services": "on", "services_backend": "ebpf", "services_cgroup": cgroup}
    limpet(machine, "controller", "install", "--pod-cidr", "10.77.0.0/16")
    token = limpet(machine, "token", "create").strip()
    limpet(machine, "install", "--controller", "127.0.0.1:7470", "--token", token)
    with Namespace(f"/proc/{machine.pid}/ns/net") as namespace, ServiceApi(namespace) as api:
        api.put(service("web", "10.96.0.10"), *slices("web", "10.77.0.9"))
        settings |= {"source": "kubernetes", "kubernetes_server": api.url}
        machine.write(CONFIG, "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
        machine.run("systemctl", "restart", "limpet-agent")
        wait_until(
            lambda: (
                (told := services_of(machine)).get("backend") == "ebpf" or told.get("why_not_ebpf")
            ),
            "programs are in force, or it is told why not",
        )


def services_of(machine: ServiceMachine) -> dict[str, object]:
    told: dict[str, object] = cluster_of(machine)["services"] or {}
    return told


def held_by_pins(folder: Path) -> set[tuple[str, int]]:
    """Kind and id of what the kernel holds for each pin, and of the programs that links attach."""
    lib = _library()
    found = set()
    for path in (each for each in folder.rglob("*") if each.is_file()):
        fd = lib.bpf_obj_get(os.fsencode(path))
        assert fd >= 0, path
        # Source: linux/bpf.h: `bpf_map_info` and `bpf_link_info` begin with type and id, which a
        # link's program follows.
        info, length = (ctypes.c_uint32 * 64)(), ctypes.c_uint32(4 * 64)
        assert lib.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(length)) == 0
        os.close(fd)
        if path.parent.name == "links":
            found |= {("link", info[1]), ("prog", info[2])}
        else:
            found.add(("map", info[1]))
    return found


def is_held(kind: str, number: int) -> bool:
    lib = _library()
    fd: int = getattr(lib, f"bpf_{kind}_get_fd_by_id")(number)
    if fd >= 0:
        os.close(fd)
        return True
    assert fd == -errno.ENOENT
    return False


def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libbpf.so.1")


def test_an_uninstall_leaves_no_pin_no_program_and_nothing_attached(
    machine: ServiceMachine,
) -> None:
    mount_bpffs(machine)
    pins = machine.path(BPFFS)
    before = sorted(pins.iterdir())  # a kernel may have some of its own
    install_with_ebpf_asked_for(machine)
    assert services_of(machine)["backend"] == "ebpf"
    held = held_by_pins(pins / "limpet")
    assert {kind for kind, _ in held} == {"link", "prog", "map"}
    assert all(is_held(*each) for each in held)
    assert "services-not-by-ebpf" not in found(machine)

    limpet(machine, "uninstall")

    assert sorted(pins.iterdir()) == before
    # The kernel frees them a moment after their last pin is gone.
    wait_until(lambda: not any(is_held(*each) for each in held), "the kernel has let go of them")


def test_doctor_says_that_nftables_serves_where_a_machine_has_no_bpffs(
    machine: ServiceMachine,
) -> None:
    install_with_ebpf_asked_for(machine)

    told = services_of(machine)
    assert told["backend"] == "nftables"
    assert "no bpffs there" in str(told["why_not_ebpf"])
    assert "services-not-by-ebpf" in found(machine)
    said = machine.try_run(*LIMPET, "doctor").stdout
    assert f"this node serves Services by nftables alone: {told['why_not_ebpf']}" in said
