"""Finds the controller to ask: the one of this machine, or that of a Kubernetes cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.agent.client import Kind, typed
from limpet.base.errors import ControllerUnavailable
from limpet.cli.options import ControllerConfig
from limpet.controller.settings import load_settings

if TYPE_CHECKING:  # loaded only where an API server is asked
    from limpet.controller.admin.api_server import ClusterAccess

NAMESPACE = "limpet-system"
"""Namespace of Limpet, where deploy/limpet.yaml is applied."""

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig of the Kubernetes cluster whose controller is asked (default: "
        "KUBECONFIG, ~/.kube/config).",
    ),
]
Context = Annotated[
    str, typer.Option("--context", help="Context of the kubeconfig (default: the current one).")
]
Namespace = Annotated[
    str, typer.Option("--namespace", help="Namespace that Limpet is in, in the Kubernetes cluster.")
]


@dataclass(frozen=True, slots=True)
class ReachOptions:
    """What a person said about it; each field is an option."""

    config: ControllerConfig = None
    kubeconfig: Kubeconfig = None
    context: Context = ""
    namespace: Namespace = NAMESPACE

    @property
    def names_cluster(self) -> bool:
        return self.kubeconfig is not None or bool(self.context)


HERE = ReachOptions()


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose parameter `reach` becomes the options of `ReachOptions`."""
    signature = inspect.signature(command, eval_str=True)
    own = inspect.signature(ReachOptions, eval_str=True).parameters.values()

    @wraps(command)
    def run(**arguments: Any) -> None:
        said = {each.name: arguments.pop(each.name) for each in fields(ReachOptions)}
        command(**arguments, reach=ReachOptions(**said))

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        each.replace(kind=keyword) for each in signature.parameters.values() if each.name != "reach"
    ]
    parameters += [each.replace(kind=keyword) for each in own]
    setattr(run, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    del run.__wrapped__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def ask(reach: ReachOptions, verb: str, kind: type[Kind], **arguments: Any) -> Kind:
    """The controller's answer: of this machine where one runs, else of the kubeconfig's cluster.

    Raises: ControllerUnavailable; AnotherVersion; LimpetError with its words on failure.
    """
    return typed(_call(reach, verb, **arguments), kind, of="the controller that answers")


def _call(reach: ReachOptions, verb: str, **arguments: Any) -> dict[str, Any]:
    path = load_settings(reach.config).socket
    by_name = reach.names_cluster or (reach.config is None and not _is_there(path))
    if by_name and (found := _kubeconfigs(reach)) is not None:
        from limpet.controller.admin.api_server import call_cluster

        return call_cluster(_cluster(found, reach), verb, **arguments)
    if by_name:
        raise ControllerUnavailable(
            f"find the controller: none runs on this machine ({path} is not there: systemctl "
            "status limpet-controller), and no kubeconfig says which Kubernetes cluster's to ask "
            "(name one by --kubeconfig or KUBECONFIG, or put it at ~/.kube/config)"
        )
    from limpet.controller.admin.client import call

    return call(path, verb, **arguments)


def named_cluster(reach: ReachOptions) -> ClusterAccess:
    """The cluster of the kubeconfig that is named, or its context. Raises: LimpetError."""
    found = _kubeconfigs(reach)
    if found is None:
        raise ControllerUnavailable(
            f"find the cluster of context {reach.context}: there is no kubeconfig (name one by "
            "--kubeconfig or KUBECONFIG, or put it at ~/.kube/config)"
        )
    return _cluster(found, reach)


def _cluster(kubeconfigs: list[Path], reach: ReachOptions) -> ClusterAccess:
    # Here: only who asks an API server waits for TLS and YAML to be loaded.
    from limpet.controller.admin.api_server import ClusterAccess
    from limpet.kubernetes.access.kubeconfig import read_kubeconfig

    return ClusterAccess(read_kubeconfig(kubeconfigs, reach.context), reach.namespace)


def _is_there(path: Path) -> bool:
    """True also where its folder is not to be looked into: who asks there is told so."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _kubeconfigs(reach: ReachOptions) -> list[Path] | None:
    """None: nothing names one."""
    if reach.kubeconfig is not None:
        return [reach.kubeconfig]
    from limpet.kubernetes.access.kubeconfig import find_kubeconfig

    return find_kubeconfig() or None
