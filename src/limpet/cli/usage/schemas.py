"""JSON schemas of what commands answer with `--output json`, made of the structs that say it."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import msgspec

from limpet.agent.policies.said import Applied, PodLabels, PodPolicies, Policies
from limpet.agent.status.node import RecordCheck, Records, Released, Repaired, Status
from limpet.agent.status.paths import PathAnswer, Peers
from limpet.agent.status.services import ServiceAnswer, ServicesAnswer
from limpet.cli import answers
from limpet.cli.connectivity.report import ConnectivityReport
from limpet.cli.netcheck.told import Netcheck
from limpet.cli.trace.verdict import Traced
from limpet.controller.admin import answers as controller
from limpet.dns.status.answers import NameAnswered, NamesStatus
from limpet.lab.measure.shown import WorldShown
from limpet.picture.timeline import Timeline

ANSWERS: dict[str, tuple[type, ...]] = {
    "status": (Status,),
    "path": (PathAnswer, answers.PathJudged),
    "ping": (answers.Pinged,),
    "netcheck": (Netcheck,),
    "peer list": (Peers,),
    "ipam list": (Records,),
    "ipam check": (RecordCheck,),
    "ipam repair": (Repaired,),
    "ipam release": (Released,),
    "service list": (ServicesAnswer,),
    "service show": (ServiceAnswer,),
    "policy apply": (Applied, controller.PoliciesSigned),
    "policy delete": (Applied, controller.PolicyWithdrawn),
    "policy list": (Policies, controller.SignedPolicies),
    "policy show": (PodPolicies,),
    "dns query": (NameAnswered,),
    "dns status": (NamesStatus,),
    "events": (Timeline,),
    "doctor": (answers.Found,),
    "trace": (Traced,),
    "bugreport": (answers.Reported,),
    "bundle": (answers.Bundled,),
    "help": (answers.Topics, answers.TopicShown),
    "connectivity test": (ConnectivityReport,),
    "node list": (controller.NodesListed,),
    "node show": (controller.NodeShown,),
    "node remove": (controller.NodeRemoved,),
    "node replace": (controller.NodeReplaced,),
    "node label": (controller.NodeLabelled,),
    "node set": (controller.NodeSet,),
    "community create": (controller.CommunityChanged,),
    "community add": (controller.CommunityChanged,),
    "community remove": (controller.CommunityChanged, controller.CommunityDissolved),
    "community list": (controller.CommunitiesListed,),
    "community show": (controller.CommunityShown,),
    "network show": (controller.NetworkShown,),
    "network set": (controller.NetworkChanged,),
    "segment list": (controller.SegmentsListed,),
    "pod list": (controller.PodsListed,),
    "pod label": (PodLabels,),
    "token create": (controller.TokenCreated,),
    "token list": (controller.TokensListed,),
    "token remove": (controller.TokensRemoved,),
    "ui token create": (answers.PageTokenMade,),
    "ui token list": (answers.PageTokens,),
    "ui token remove": (answers.PageTokenRemoved,),
    "install": (answers.Installed,),
    "uninstall": (answers.Uninstalled,),
    "join": (answers.JoinedCluster, answers.ControllersMoved),
    "controller install": (answers.Installed,),
    "controller uninstall": (answers.Uninstalled,),
    "controller backup": (answers.BackedUp,),
    "controller restore": (answers.Restored,),
    "controller rotate-key": (controller.KeyRotated,),
    "controller recovery": (controller.Recovery,),
    "lab up": (WorldShown, answers.WorldRefused),
    "lab status": (WorldShown,),
    "lab fault": (answers.Befallen,),
    "lab down": (answers.TakenDown,),
}
"""What each command answers, one of these; the words are those of the command without `limpet`."""


def _in_one_margin(schema: Any) -> Any:
    """Descriptions are docstrings, of which newer Pythons take the margin away by themselves."""
    match schema:
        case dict():
            return {
                key: cleandoc(value)
                if key == "description" and isinstance(value, str)
                else _in_one_margin(value)
                for key, value in schema.items()
            }
        case list() | tuple():
            return [_in_one_margin(each) for each in schema]
        case _:
            return schema


def schema_of(words: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of that command's answer. Keys may be added by later versions."""
    found, parts = msgspec.json.schema_components(ANSWERS[words], ref_template="#/$defs/{name}")
    one = found[0] if len(found) == 1 else {"anyOf": [*found]}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"limpet {words}",
        **one,
        "$defs": parts,
    }
    described: dict[str, Any] = _in_one_margin(document)
    return described


def schema_file(words: str) -> str:
    """Name of the file that has it."""
    return f"{words.replace(' ', '-')}.json"
