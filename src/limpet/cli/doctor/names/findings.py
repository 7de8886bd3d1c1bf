"""What it means how names are answered, and whom pods ask. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from limpet import __version__
from limpet.base.text.few import few
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.output import count, counted
from limpet.dns.status.answers import NamesStatus, Upstream

_JOURNAL = "journalctl -u limpet-dns, or `kubectl logs` of its pod, says why"
_MOST_NAMED = 3


def status_findings(status: NamesStatus) -> Iterator[Finding]:
    """What the process's own words amount to."""
    if status.version != __version__:
        words = f"names are answered by version {status.version}, this is {__version__}"
        yield another_version(words)
    if status.services is None:
        yield error(
            "dns-no-services",
            "no Service of the cluster was ever heard of on this node",
            "names of the cluster get an error (SERVFAIL)",
            "`limpet status` says whether the agent hears the API server, which has to be once "
            '(source = "kubernetes", dns = "on" in the agent\'s settings too)',
        )
    else:
        yield ok(f"names of {count(status.services)} Services are answered")
    if status.trouble:
        yield error(
            "dns-trouble",
            f"names: {status.trouble}",
            "answers may be old, or another's",
            f"do what the message says; {_JOURNAL}",
        )
    yield from _upstream_findings(status.upstreams)


def another_version(words: str) -> Finding:
    """`words`: whose it is."""
    return warn(
        "dns-version",
        words,
        "it was not restarted after an upgrade",
        "systemctl restart limpet-dns (no question is lost)",
    )


def _upstream_findings(upstreams: Sequence[Upstream]) -> Iterator[Finding]:
    used = [each.address for each in upstreams if each.state == "used"]
    if not upstreams:
        yield warn(
            "dns-no-upstream",
            "no name server is known for names that are not the cluster's",
            "they get an error (SERVFAIL)",
            'say one: dns_upstreams = ["192.0.2.53"], or in dns_resolv_conf',
        )
    for each in upstreams:
        if "sends our questions back" in each.state:
            yield error(
                "dns-loop",
                f"name server {each.address} sends our own questions back to us",
                "a question would go round for ever; that server is left out",
                "name another one in dns_upstreams, or take this node's DNS address out of what "
                "that server asks",
            )
        elif each.state != "used":
            more = f"{', '.join(used)} answers" if used else "what is kept is told for a while"
            level = warn if used else error
            yield level(
                "dns-upstream-silent",
                f"name server {each.address} {each.state}",
                f"of names that are not the cluster's; {more}",
                "nothing, if it is away for now; else correct dns_upstreams or dns_resolv_conf",
            )


def address_findings(silent: Collection[str]) -> Iterator[Finding]:
    """`silent`: of the addresses that pods ask, those where nobody has answered."""
    for address in silent:
        yield error(
            "dns-address-silent",
            f"nobody answers names at {address}",
            "pods that ask there wait in vain",
            f"`ss -lnp 'sport = 53'` says who has that port; {_JOURNAL}",
        )


def kubelet_findings(
    told: Sequence[str] | None, listen: Collection[str], path: str
) -> Iterator[Finding]:
    """`told`: clusterDNS of the kubelet's configuration; None: it has no such file here."""
    if told is None or set(told) & set(listen):
        return
    first = next(iter(listen))
    yield warn(
        "dns-kubelet",
        f"the kubelet tells pods to ask {', '.join(told) or 'nobody'} for names ({path})",
        "they do not ask this node's DNS",
        f'clusterDNS: ["{first}"] there, and restart the kubelet; it holds for new pods',
    )


def pod_findings(elsewhere: Mapping[str, Sequence[str]], domain: str) -> Iterator[Finding]:
    """`elsewhere`: pods that look for names of the cluster at other addresses, and those."""
    if not elsewhere:
        return
    named = few(elsewhere, _MOST_NAMED, say=lambda pod: f"{pod} ({', '.join(elsewhere[pod])})")
    yield warn(
        "dns-pods-elsewhere",
        f"names of {domain} are asked of others than this node by "
        f"{counted(len(elsewhere), 'pod')}: "
        f"{named}",
        "what they ask is away when the cloud is",
        "they were started before the kubelet had clusterDNS, or name others themselves "
        "(dnsConfig): start them anew",
    )
