"""The page of the whole cluster: where it is served, whom it asks, and who may look."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.base.addresses import Listen, parse_listen
from limpet.base.errors import CommandLineError
from limpet.cli.output import put_at_once, say
from limpet.cli.reach import ReachOptions, named_cluster
from limpet.controller.settings import ControllerSettings, load_settings

if TYPE_CHECKING:  # they are loaded where they are used
    from limpet.controller.admin.api_server import ClusterAccess
    from limpet.web.access.secret import TokenSecret
    from limpet.web.access.tokens import TokenFile
    from limpet.web.live.source import ControllerSource

CLOUD_PORT = 7480


@dataclass(frozen=True, slots=True)
class Cloud:
    """What the command line says; what it leaves out is as the controller's settings say."""

    listen: str | None
    names: frozenset[str]
    certificate: tuple[Path, Path] | None
    """And its key."""
    tokens_only: bool
    open_browser: bool


def serve_cloud(options: Cloud, reach: ReachOptions) -> None:
    """Until it is told to end. Raises: LimpetError."""
    from limpet.base.process.lifetime import run as run_process
    from limpet.base.process.log import configure_log
    from limpet.web.access.certificate import fingerprint, own_certificate
    from limpet.web.access.tokens import CERTIFICATE_FOLDER, TokenFile
    from limpet.web.server import Serving, serve

    settings = load_settings(reach.config)
    configure_log(settings.log_level)
    looks = settings.looks
    at = listen_at(options.listen or looks.page_listen or f"127.0.0.1:{CLOUD_PORT}")
    names = {each.lower() for each in options.names or looks.page_names}
    given = options.certificate
    if given is None and looks.page_certificate is not None and looks.page_key is not None:
        given = looks.page_certificate, looks.page_key
    address, renew = ip_address(at[0]), None
    if given is None and not address.is_loopback:
        own = names if address.is_unspecified else {*names, at[0]}
        renew = partial(own_certificate, settings.database.parent / CERTIFICATE_FOLDER, own)
        given = renew()
        say(f"limpet: its own certificate; SHA-256 fingerprint {fingerprint(given[0])}")
    serving = Serving(at, frozenset(names), given, renew=renew)
    if not reach.names_cluster:  # one's own page of a cluster is entered by its links alone
        tokens = token_book(settings)
        follow = None if isinstance(tokens, TokenFile) else tokens.follow
        serving = Serving(at, frozenset(names), given, tokens.by_digest, follow, renew)
    prints = address.is_loopback and not options.tokens_only
    run_process(
        partial(
            serve,
            _source(settings, reach),
            serving,
            partial(tell, options.open_browser) if prints else None,
        )
    )


def token_book(settings: ControllerSettings) -> TokenFile | TokenSecret:
    """Where the controller keeps its record, the tokens are beside it. Raises: LimpetError."""
    if settings.place.store == "kubernetes":
        from limpet.web.access.secret import TokenSecret

        cluster = _own_cluster(settings)
        return TokenSecret(cluster.access, cluster.namespace)
    from limpet.web.access.tokens import FILE_NAME, TokenFile

    return TokenFile(settings.database.parent / FILE_NAME)


def _source(settings: ControllerSettings, reach: ReachOptions) -> ControllerSource:
    """Asks this machine's controller; where there is none, or another is named, the cluster's."""
    from limpet.web.live.source import FAR_REST_S, FAR_WAIT_S, ControllerSource, at_socket

    if reach.names_cluster:
        cluster = named_cluster(reach)
    elif settings.place.store == "kubernetes" and not settings.socket.exists():
        cluster = _own_cluster(settings)
    else:
        return ControllerSource(at_socket(settings.socket))
    from limpet.controller.admin.api_server import Caller

    return ControllerSource(Caller(cluster), wait_s=FAR_WAIT_S, rest_s=FAR_REST_S)


def _own_cluster(settings: ControllerSettings) -> ClusterAccess:
    """Access to the cluster whose controller has these settings. Raises: AccessError."""
    from limpet.controller.admin.api_server import ClusterAccess
    from limpet.kubernetes.access.kubeconfig import find_access

    place = settings.place
    return ClusterAccess(find_access(place.kubeconfig, server=place.server or ""), place.namespace)


def tell(open_browser: bool, link: str) -> None:
    put_at_once(link)
    if not open_browser:
        return
    opener = shutil.which("xdg-open")
    if opener is None:
        say("limpet: this machine has no xdg-open: open the link yourself")
        return
    subprocess.Popen([opener, link], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def listen_at(text: str) -> Listen:
    """Raises: CommandLineError."""
    try:
        return parse_listen(text)
    except ValueError as error:
        raise CommandLineError(f"ui --listen {text[:80]!r}: {error}") from error
