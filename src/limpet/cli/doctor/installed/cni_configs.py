"""Other CNI configurations: which one runtimes take, and what it shares with ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import Installation
from limpet.cli.install.cni_configs import CniConfig, read_cni_configs
from limpet.datapath.node.pod.attachment import Attachment


def examine_configs(target: Installation, configs: list[CniConfig]) -> Iterator[Finding]:
    """`configs`: those of the folder, sorted."""
    own = target.conflist.name
    others = [
        config
        for config in configs
        if config.path.name != own and config.path not in target.replaced
    ]
    for config in others:
        if config.problem:
            yield _broken(config, is_first=config.path.name < own)
    usable = [config for config in others if not config.problem]
    first = next((config for config in usable if config.path.name < own), None)
    if first is not None:
        yield error(
            "cni-config-before-ours",
            f"{first.path} ({_described(first)}) sorts before {own}",
            "runtimes take the first configuration of the folder and would not use Limpet",
            f"move it out of {target.cni_conf_dir} when its pods may be started anew, "
            "and install again",
        )
    elif usable and not target.installed:
        yield warn(
            "cni-config-replaced",
            f"runtimes take {usable[0].path} ({_described(usable[0])}) now",
            f"they will take {own} instead, for pods that are started from then on",
            "restart the pods after the installation, so that all are on one network",
        )
    elif not others and not target.installed:
        yield ok(f"no other CNI configuration in {target.cni_conf_dir}")
    yield from (finding for config in usable for finding in _rivals(target, config))


def _broken(config: CniConfig, *, is_first: bool) -> Finding:
    """Source: loadFromConfDir in containerd's go-cni, which goes by name, and ends with an error at
    a file that it cannot load."""
    what = f"{config.path} {config.problem}"
    if is_first:
        return error(
            "cni-config-broken",
            f"{what}, and sorts before Limpet's",
            "containerd loads no configuration at all while it is there (CRI-O skips it): the node "
            "is not ready, and no pod starts",
            f"mend it, or move it out of {config.path.parent}",
        )
    return warn(
        "cni-config-broken",
        what,
        "runtimes complain of it, or do not come to it",
        "mend or remove it",
    )


def bridges_in_use(target: Installation, pods: Iterable[Attachment]) -> set[str]:
    """Names of the bridges that networks of this node are on: the agent's, those of `pods`, and
    those that CNI configurations name, but for flannel's, which moved away or is left over.

    Raises: StorageError.
    """
    found = {target.settings.pods.bridge}
    found |= {pod.bridge.ifname for pod in pods if pod.bridge is not None}
    for config in [] if target.in_lab else read_cni_configs(target.cni_conf_dir):
        found |= {*config.own_bridges, *(() if "flannel" in config.plugins else config.bridges)}
    return found


def _rivals(target: Installation, config: CniConfig) -> Iterator[Finding]:
    shared = [
        segment
        for segment in target.state.segments
        for subnet in config.subnets
        if segment.version == subnet.version and segment.overlaps(subnet)
    ]
    names = ", ".join(map(str, shared))
    if shared and config.name != target.network_name:
        yield error(
            "segment-given-twice",
            f"{config.path} (network {config.name!r}) gives out addresses of {names} too",
            "the two would give one address to two pods",
            "use another segment; or, to move that network to Limpet with its addresses, "
            f"install with --network-name {config.name}",
        )
    if target.settings.pods.bridge in config.bridges and config.name != target.network_name:
        yield warn(
            "bridge-shared",
            f"{config.path} uses the bridge {target.settings.pods.bridge} too",
            "both would set it up",
            'set another name in the agent\'s configuration (bridge = "limpet1")',
        )


def _described(config: CniConfig) -> str:
    return f"network {config.name!r}, {' + '.join(config.plugins)}"
