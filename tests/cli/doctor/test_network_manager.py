"""The real NetworkManager, with a bus of its own: what doctor says of it is so, its mend works."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limpet.cli.doctor.machine.network_daemons import NETWORK_DAEMONS, examine_network_daemons
from tests.beds.namespaces import Netns, NetnsFactory
from tests.waiting import PATIENCE_S, wait_until

CHECKOUT = Path(__file__).resolve().parents[3]
(OURS,) = (each for each in NETWORK_DAEMONS if each.id == "networkmanager")
BRIDGE, POD, OTHER = "limpet0", "limxpod", "other0"
_BUS = """\
<busconfig>
  <type>system</type>
  <listen>unix:path={bus}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow own="*"/> <allow send_destination="*"/> <allow send_type="method_call"/>
    <allow send_type="signal"/> <allow receive_sender="*"/>
  </policy>
</busconfig>
"""
_SETTINGS = """\
[main]
plugins=keyfile
dns=none
rc-manager=unmanaged
auth-polkit=false
"""
# Where /sys cannot be written it asks no udev, which has no say in a namespace.
_START = """
mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib || exit 1
mount -t sysfs -o ro sysfs /sys || exit 1
PATH="$2/usr/bin:$PATH" dbus-daemon --nofork --nopidfile --config-file="$1/bus.conf" &
until [ -S "$1/bus" ]; do sleep 0.05; done
exec "$2/usr/sbin/NetworkManager" --no-daemon --config="$1/settings.conf" \\
    --config-dir="$3" --system-config-dir="$1/none" --state-file="$1/state" \\
    --intern-config="$1/intern" --pid-file="$1/pid"
"""


@pytest.fixture(scope="module")
def tree() -> Path:
    """Where the program is."""
    script = CHECKOUT / "scripts" / "fetch-network-manager"
    done = subprocess.run([script], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


@pytest.fixture
def netns(make_netns: NetnsFactory) -> Netns:
    found = make_netns("nm")
    found.ip(f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")
    found.ip(f"link add {POD} type veth peer name limypod", f"link set {POD} master {BRIDGE} up")
    found.ip(f"link add {OTHER} type bridge", f"link set {OTHER} up")
    found.ip(f"address add 10.244.7.1/24 dev {BRIDGE}", f"address add 192.0.2.1/24 dev {OTHER}")
    return found


@contextlib.contextmanager
def running(netns: Netns, tree: Path, conf_d: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """What it makes of each interface, asked as a person does; all is gone afterwards."""
    libraries = ":".join(map(str, sorted(tree.glob("**/x86_64-linux-gnu"))))
    libraries = libraries or ":".join(map(str, sorted(tree.glob("**/aarch64-linux-gnu"))))
    with tempfile.TemporaryDirectory(prefix="limpet-nm-") as folder:
        bus = f"{folder}/bus"
        Path(folder, "bus.conf").write_text(_BUS.format(bus=bus))
        Path(folder, "settings.conf").write_text(_SETTINGS)
        environment = {
            **os.environ,
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus}",
            "LD_LIBRARY_PATH": libraries,
        }

        def states() -> dict[str, str]:
            asked = subprocess.run(
                [tree / "usr/bin/nmcli", "-t", "-f", "DEVICE,STATE", "device"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            lines = (line.partition(":") for line in asked.stdout.splitlines())
            return {name: state for name, _, state in lines}

        process = subprocess.Popen(
            [
                *("nsenter", f"--net={netns.path}"),
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("sh", "-c", _START, "sh", folder, str(tree), str(conf_d)),
            ],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield states
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def test_it_takes_pods_interfaces_over_until_it_is_told_what_doctor_says(
    netns: Netns, tree: Path, tmp_path: Path
) -> None:
    file = tmp_path / OURS.file.lstrip("/")
    file.parent.mkdir(parents=True)

    def found() -> list[str]:
        with netns.entered():
            return [each.id for each in examine_network_daemons(BRIDGE, tmp_path) if each.id]

    assert found() == []
    with running(netns, tree, file.parent) as states:
        wait_until(lambda: is_taken(states(), OTHER, BRIDGE, POD), "it takes all of them")
        assert found() == ["networkmanager"]

    file.write_text(OURS.text(BRIDGE))
    with running(netns, tree, file.parent) as states:
        wait_until(lambda: is_taken(states(), OTHER), "it takes another's bridge")
        now = states()
        assert {now[BRIDGE], now[POD], now["limypod"]} == {"unmanaged"}
        assert found() == []


def is_taken(states: dict[str, str], *names: str) -> bool:
    return all(states.get(name, "unmanaged") not in ("unmanaged", "unavailable") for name in names)
