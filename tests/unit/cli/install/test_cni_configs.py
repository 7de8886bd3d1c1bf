"""What a folder of CNI configurations says."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cli.install.cni_configs import read_cni_configs

FLANNEL = {
    "name": "cbr0",
    "cniVersion": "0.3.1",
    "plugins": [
        {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
BRIDGE = {
    "cniVersion": "1.0.0",
    "name": "edge",
    "type": "bridge",
    "bridge": "br7",
    "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "10.244.7.0/24"}], [{"subnet": "fd00:7::/64"}]],
    },
}


def test_configurations_come_in_the_order_in_which_runtimes_take_them(tmp_path: Path) -> None:
    for name in ("20-b.conf", "10-z.conflist", "README", "05-a.conflist.bak", "99.json"):
        (tmp_path / name).write_text(json.dumps(FLANNEL))

    found = [config.path.name for config in read_cni_configs(tmp_path)]

    assert found == ["10-z.conflist", "20-b.conf", "99.json"]


def test_bridges_and_subnets_of_the_usual_plugins_are_known(tmp_path: Path) -> None:
    (tmp_path / "10-flannel.conflist").write_text(json.dumps(FLANNEL))
    (tmp_path / "20-bridge.conf").write_text(json.dumps(BRIDGE))

    flannel, bridge = read_cni_configs(tmp_path)

    assert (flannel.name, flannel.plugins) == ("cbr0", ("flannel", "portmap"))
    assert (flannel.bridges, flannel.subnets) == (("cni0",), ())
    assert bridge.bridges == ("br7",)
    assert bridge.subnets == (ip_network("10.244.7.0/24"), ip_network("fd00:7::/64"))
    assert not flannel.problem
    assert not bridge.problem


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert read_cni_configs(tmp_path / "net.d") == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "plugins", "ipam", "ranges", "subnet", "delegate"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    content=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()),
    name=st.sampled_from(["x.conf", "x.conflist", "x.json"]),
)
def test_whatever_a_file_says_it_is_a_configuration_or_a_problem(
    tmp_path_factory: object, content: bytes, name: str
) -> None:
    folder = tmp_path_factory.mktemp("net.d")  # type: ignore[attr-defined]
    (folder / name).write_bytes(content)

    (config,) = read_cni_configs(folder)

    assert config.problem or all(config.plugins)
