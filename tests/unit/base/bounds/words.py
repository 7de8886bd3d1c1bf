"""Probes of what a log and a terminal show of others' words."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpet.base.bounds.words import (
    CELL,
    FILE,
    LABEL,
    LEFT_OUT,
    LEFT_OUT_OBJECTS,
    LINE,
    LOG_FIELDS,
    LOG_LINES,
    LOG_REFUSALS,
    LOG_TRACEBACK,
    LOG_VALUE,
    MARKS,
    NAME,
    SERVICE_PORTS,
    SLICE_ENDPOINTS,
    UNREAD,
)
from limpet.base.disk import read_regular
from limpet.base.process.log import in_bounds
from limpet.base.process.log_limits import LogLimits
from limpet.base.text.escaping import escaped
from limpet.base.text.names import label_problem, name_problem
from limpet.cli.output import put, put_table
from limpet.cloud.workloads.unread import UnreadObjects
from limpet.cluster.api import name_problem as problem_as_said
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import _document
from limpet.kubernetes.kinds.left_out import LeftOut
from limpet.kubernetes.kinds.objects import Viewed
from limpet.kubernetes.kinds.services import (
    EndpointView,
    ServicePortView,
    ServiceSpecView,
    ServiceView,
    SliceView,
    service_of,
    slice_of,
)
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.kubernetes.watch_event import Unreadable
from limpet.services.catalog import left_out_in_words
from limpet.services.values import Service
from tests.unit.base.bounds.probes import probe


def _stays(**values: Any) -> bool:
    return in_bounds(None, "", {"event": "it", **values}) == {"event": "it", **values}


@probe(LOG_VALUE)
def _(amount: int) -> bool:
    return _stays(value="x" * amount)


@probe(LOG_TRACEBACK, above=LOG_TRACEBACK.most + 2)
def _(amount: int) -> bool:
    return _stays(exception="x" * amount)


@probe(LOG_FIELDS)
def _(amount: int) -> bool:
    return _stays(**{f"value{number}": number for number in range(amount)})


@probe(LOG_LINES)
def _(amount: int) -> bool:
    return _are_told(amount, by_others=False)


@probe(LOG_REFUSALS)
def _(amount: int) -> bool:
    return _are_told(amount, by_others=True)


def _are_told(amount: int, *, by_others: bool) -> bool:
    limits = LogLimits()
    return all(limits.take("it", 0.0, by_others=by_others) == 0 for _ in range(amount))


@probe(CELL)
def _(amount: int) -> bool:
    return "x" * amount in _printed(put_table, [{"cell": "x" * amount}])


@probe(LINE)
def _(amount: int) -> bool:
    return _printed(put, "x" * amount) == "x" * amount + "\n"


def _printed(print_it: Callable[..., None], *words: Any) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_it(*words)
    return printed.getvalue()


@probe(NAME)
def _(amount: int) -> bool:
    """Also of a document, and as a person says it to the controller."""
    name = "x" * amount
    sealed = Sealed(POLICY.name, b"", b"")
    try:
        is_document = _document(POLICY, sealed, SignedPolicy(name, 1)).name == name
    except ValueError:
        is_document = False
    taken = {name_problem(name) == "", problem_as_said(name) is None, is_document}
    assert len(taken) == 1
    return taken.pop()


@probe(FILE)
def _(amount: int) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(amount)
        try:
            return len(read_regular(Path(file.name))) == amount
        except OSError:
            return False


@probe(LEFT_OUT)
def _(amount: int) -> bool:
    out = LeftOut()
    for number in range(amount):
        out.note(f"ports[{number}]", 0, "no port")
    return len(out.words) == amount and "more" not in out.words[-1]


@probe(LEFT_OUT_OBJECTS)
def _(amount: int) -> bool:
    odd = [Service("shop", f"web-{number}", left_out=("a port",)) for number in range(amount)]
    return len(left_out_in_words(odd)) == amount


@probe(UNREAD)
def _(amount: int) -> bool:
    unread = UnreadObjects()
    found = [Unreadable(f"web-{number}", "bad") for number in range(amount)]
    changes: ObjectChanges[Viewed] = ObjectChanges(unreadable=found, listed=True)
    unread.hear("Service", changes)
    return len(unread) == amount


@probe(SLICE_ENDPOINTS)
def _(amount: int) -> bool:
    endpoints = [EndpointView(addresses=["10.1.0.2"])] * amount
    return len(slice_of(SliceView(address_type="IPv4", endpoints=endpoints)).endpoints) == amount


@probe(SERVICE_PORTS)
def _(amount: int) -> bool:
    """Of both, and it is said what is left out."""
    ports = [ServicePortView(name=f"p{number}", port=80) for number in range(amount)]
    service = service_of(ServiceView(spec=ServiceSpecView(ports=ports)))
    piece = slice_of(SliceView(address_type="IPv4", ports=ports))
    taken = {len(service.ports) == amount, len(piece.ports) == amount, not service.left_out}
    assert len(taken) == 1
    return taken.pop()


@probe(LABEL)
def _(amount: int) -> bool:
    """Both, and a name behind a domain."""
    text = "x" * amount
    said = [(text, ""), ("site", text), (f"example.com/{text}", "")]
    taken = {label_problem(key, value) == "" for key, value in said}
    assert len(taken) == 1
    return taken.pop()


@probe(MARKS)
def _(amount: int) -> bool:
    return escaped("e" + "\u0301" * amount) == "e" + "\u0301" * amount
