"""The agent's settings: its configuration file, read once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from limpet.base.configuration import (
    AGENT_PATH,
    AGENT_VARIABLE,
    Listens,
    LogLevel,
    parse_configuration,
    read_configuration,
)
from limpet.base.settings import (
    DnsSettings,
    Folders,
    PeerSettings,
    PodSettings,
    PolicySettings,
    RelaySettings,
    ServiceSettings,
    SourceSettings,
    TunnelSettings,
)


class Settings(Struct, frozen=True, kw_only=True):
    """What a person wrote, checked, defaults filled in; docs/configuration.md says the same."""

    folders: Folders = Folders()
    pods: PodSettings = PodSettings()
    peers: PeerSettings = PeerSettings()
    source: SourceSettings = SourceSettings()
    services: ServiceSettings = ServiceSettings()
    policies: PolicySettings = PolicySettings()
    tunnel: TunnelSettings = TunnelSettings()
    relay: RelaySettings = RelaySettings()
    dns: DnsSettings = DnsSettings()
    resync_s: Annotated[float, Meta(ge=1, lt=1e9)] = 60.0
    """Seconds between rounds that read everything anew, whatever the kernel notified."""
    metrics_listen: Listens = ()
    """Addresses and ports where `/metrics` and `/healthz` are served in clear."""
    log_level: LogLevel = "info"

    @property
    def joins_by_itself(self) -> bool:
        """A node that has joined no cluster asks to be let in, with the token of its pod."""
        return self.source.join_token_file is not None and not self.pods.segments

    def __post_init__(self) -> None:
        if self.pods.segments and not self.pods.cni:
            raise ValueError(
                f"cni = false, and segments = {[str(each) for each in self.pods.segments]}: a node "
                "that attaches no pods needs none (take one of the two out; the cluster grants it "
                "an address of its own)"
            )
        if self.services.mode == "on" and self.source.source != "kubernetes":
            raise ValueError(
                f'services = "on": with source = "{self.source.source}" nothing tells this node of '
                'Services (source = "kubernetes")'
            )
        if self.policies.mode == "on" and self.source.source != "kubernetes":
            raise ValueError(
                f'policies = "on": with source = "{self.source.source}" nothing tells this node of '
                'Kubernetes\' policies (source = "kubernetes", or `limpet policy apply` without it)'
            )


def load_settings(path: Path | None) -> Settings:
    """Settings of `path`; when None, of the file that LIMPET_CONFIG names, or of the default path.

    All defaults when nothing names a file and that one is not there.
    Raises: ConfigError that names value, field and file.
    """
    document, source = read_configuration(path, variable=AGENT_VARIABLE, default=AGENT_PATH)
    return parse_settings(document, source)


def parse_settings(document: Mapping[str, Any], source: str) -> Settings:
    """Raises: ConfigError that names value, field and `source`."""
    return parse_configuration(Settings, document, source)
