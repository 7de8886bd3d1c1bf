"""Endpoints of which an API server says that they are not ready, since it could not hear their
nodes. Pure.

A server that hears nothing of a node for long calls each pod there not ready; when a site that was
cut off is back, that is the first thing it is told, some seconds before its own kubelets are heard.
So what a node hears in the first minute after a cut is no reason to refuse anybody: an endpoint
that was ready before is in doubt, and where nobody is ready, those in doubt are tried.
Source: MarkPodsNotReady in k8s.io/kubernetes/pkg/controller/util/node.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from limpet.services.values import DOUBTED, Endpoint, EndpointSlice

CUT_S = 5.0
"""Who has not heard the server for so long was cut off."""
DOUBT_S = 60.0
"""After a cut, so long until what the server says counts: kubelets tell it each ten seconds how
their nodes are, and then how each pod is."""


def with_doubts(told: EndpointSlice, known: Iterable[EndpointSlice]) -> EndpointSlice:
    """The slice as it was told, those in doubt that were ready or in doubt in one of `known`."""
    before = {
        (each.address, each.node, each.pod)
        for piece in known
        for each in piece.endpoints
        if each.is_ready or each.is_doubted
    }
    found = tuple(
        replace(each, conditions=each.conditions | DOUBTED)
        if not (each.is_ready or each.is_terminating)
        and (each.address, each.node, each.pod) in before
        else each
        for each in told.endpoints
    )
    return told if found == told.endpoints else replace(told, endpoints=found)


def has_doubts(piece: EndpointSlice) -> bool:
    return any(each.is_doubted for each in piece.endpoints)


def without_doubts(piece: EndpointSlice) -> EndpointSlice:
    """As it was told."""
    return replace(piece, endpoints=tuple(map(_as_told, piece.endpoints)))


def _as_told(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, conditions=endpoint.conditions & ~DOUBTED)
