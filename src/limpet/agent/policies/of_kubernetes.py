"""Policies of a Kubernetes: heard at its API server, kept on the node's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import structlog

from limpet.agent.policies.keeper import Arguments, NodeSegments, Policies, key_of
from limpet.agent.policies.words import UNHEARD
from limpet.agent.status.said import Said
from limpet.base.disk import is_rotten, put_aside, read_kept
from limpet.base.errors import LimpetError, StorageError
from limpet.base.records.version import NewerFormatError
from limpet.base.settings import SourceSettings
from limpet.cloud.second_road.api_server import find_api_server
from limpet.cloud.workloads.policy_source import PolicySource
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachment import Attachment
from limpet.policies.heard import ReadPolicies, decode_heard
from limpet.policies.policy import Key, PolicyPod, PolicyWorld

_log = structlog.get_logger("policies")


class KubernetesPolicies(Policies):
    """Runs on the event loop."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        attachments: Iterable[Attachment],
        bridge_mac: Callable[[str], str],
        settings: SourceSettings,
        *,
        node_segments: NodeSegments = dict,
        random: Callable[[], float],
    ) -> None:
        """`path`: where it is kept. Raises: LimpetError: it cannot be read, or a later Limpet has
        written it."""
        super().__init__(loop, attachments, bridge_mac, node_segments)
        self._heard, self._damage = heard_before(path)
        find = partial(find_api_server, settings)
        self._from = PolicySource(
            self._heard,
            path,
            find,
            tell=self.part.wake,
            own_pods=self._own_keys,
            random=random,
        )

    def start(self) -> None:
        self._from.start()

    async def stop(self) -> None:
        await self._from.stop()

    def network_changed(self) -> None:
        self._from.network_changed()

    def _world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        return self._heard.world(local)

    @property
    def unheard(self) -> str:
        return "" if self._heard.is_whole else UNHEARD

    @property
    def knows_all_pods(self) -> bool:
        return self._heard.is_whole and not self._lacks_pods

    def _own_keys(self) -> set[Key]:
        return {key_of(each) for each in self._attachments}

    @property
    def _lacks_pods(self) -> str:
        """Says that those of other nodes were not heard yet; empty: they were, or nobody asks."""
        # They are asked for with the first policy only, this node's own before them.
        if (
            not self._heard.policies
            or self._from.has_heard_pods
            or not self._heard.pods.keys() <= self._own_keys()
        ):
            return ""
        return "pods of other nodes were not heard yet: no policy takes them for a peer"

    @property
    def _source(self) -> tuple[str, list[str]]:
        problems = [why for _, why in sorted(self._heard.problems.items())]
        lacks = self.unheard or self._lacks_pods
        unread = self._from.unread_pods
        found = filter(None, (lacks, self._from.error, self._damage))
        return "Kubernetes", [*found, *problems, *unread]

    async def _change(self, verb: str, arguments: Arguments) -> Said:
        raise LimpetError(
            f"{verb.replace('.', ' ')}: this node holds its pods to the policies and labels of "
            "Kubernetes (change them there, with kubectl)"
        )


def heard_before(path: Path) -> tuple[ReadPolicies, str]:
    """What is kept, and what is wrong with it, in words; nothing where there is no file, or only
    a damaged one: pods are closed until the API server has told all. Raises: StorageError,
    LimpetError."""
    try:
        text = read_kept(path)
        return (ReadPolicies() if text is None else decode_heard(text)), ""
    except NewerFormatError as error:
        raise LimpetError(f"read {path}: {error}") from error
    except (ValueError, StorageError) as error:
        if isinstance(error, StorageError) and not is_rotten(error):
            raise
        damage = f"{path} was damaged: {error} ({put_aside(path)})"
        _log.warning("policies that were kept are damaged", problem=damage)
        return ReadPolicies(), damage
