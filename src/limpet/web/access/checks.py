"""What a request has to be like, whoever sends it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer: nothing comes from another host, nothing is inline."""
TLS_HEADERS = {"Strict-Transport-Security": "max-age=31536000"}


def host_problem(host: str, names: Collection[str], *, only_loopback: bool) -> str:
    """Why what a request calls this server is not taken; empty: it is.

    A name that somebody else's name server leads here (DNS rebinding) makes their page one of the
    same origin. An address is nobody's to give.
    """
    name = _name_of(host)
    if name == "localhost" or name.lower() in names:
        return ""
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return (
            f"this page does not know the name {name[:80]!r}: ask for it by its address, or "
            "start it with --name"
        )
    if only_loopback and not address.is_loopback:
        return "this page is for this machine alone: ask for it at 127.0.0.1"
    return ""


def origin_problem(host: str, origin: str | None, fetch_site: str | None, *, tls: bool) -> str:
    """Why a request that changes something was not sent by a page of this server; empty: it was."""
    if fetch_site not in (None, "same-origin"):
        return "it was sent by a page of another origin"
    if origin is None:
        return "" if fetch_site == "same-origin" else "it does not say which page sent it"
    # In clear a proxy on this machine may speak TLS to the browser: then it is the proxy's page.
    schemes = ("https",) if tls else ("http", "https")
    if origin not in [f"{scheme}://{host}" for scheme in schemes]:
        return "it was sent by a page of another origin"
    return ""


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
