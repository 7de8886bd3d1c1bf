"""As whom the API server is asked now: tokens and certificates, read anew when files change."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from limpet.base.bounds.servers import API_CERTIFICATES, API_TOKEN
from limpet.base.http.connection import Headers, HttpServer, HttpWords
from limpet.base.http.tls import NO_CHECK_TIME
from limpet.kubernetes.access.access import Access, AccessError, Material

_WORDS = HttpWords(
    not_trusted="its certificate is not of the authority that is to be trusted: {} (does the "
    "kubeconfig belong to another cluster, or is somebody in between?)",
    no_tls="it does not speak TLS as an API server does: {}",
    not_it="what answers is no API server",
    no_listener="nothing listens there (is the API server, or the cache of this node, running, and "
    "is the port right?)",
    no_name="is there a DNS server? An address in place of the name works without",
)

Stamp = tuple[object, ...]


class Credentials:
    """Reads files when it is asked, and only those that have changed."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._token = access.token
        self._token_stamp: Stamp | None = None
        self._context: ssl.SSLContext | None = None
        self._context_stamp: Stamp | None = None
        parts = (access.ca, access.certificate, access.key)
        self._files = [part for part in parts if isinstance(part, Path)]

    def server(self) -> HttpServer:
        """Whom to connect to. Raises: AccessError."""
        at = self.access.server
        host = f"[{at.host}]" if ":" in at.host else at.host
        return HttpServer(
            f"the API server at {at}",
            at.host,
            at.port,
            self._tls() if at.tls else None,
            self.access.tls_name or at.host,
            f"{host}:{at.port}",
            _WORDS,
        )

    @property
    def are_renewed(self) -> bool:
        """Whether the files of certificates are others than those of the last connection; while
        they cannot be looked at they are not."""
        try:
            return self._context is not None and self._files_stamp() != self._context_stamp
        except OSError:
            return False

    def headers(self) -> Headers:
        """Raises: AccessError."""
        if (token := self._newest_token()) == "":
            return ()
        return (("Authorization", f"Bearer {token}"),)

    def _newest_token(self) -> str:
        path = self.access.token_file
        if path is None:
            return self._token
        with self._named("token", path):
            stamp = _stamp(path)
            if stamp != self._token_stamp:
                token = _read(path, API_TOKEN.most).decode("ascii").strip()
                if not token or not token.isprintable() or " " in token:
                    raise ValueError("it holds no token")
                self._token, self._token_stamp = token, stamp
        return self._token

    def _tls(self) -> ssl.SSLContext:
        """Certificates are not checked against the clock: that of an edge node may say 1970."""
        with self._named("certificates", *self._files):
            stamp = self._files_stamp()
            if self._context is None or stamp != self._context_stamp:
                self._context, self._context_stamp = _context(self.access), stamp
        return self._context

    def _files_stamp(self) -> Stamp:
        """Raises: OSError."""
        return tuple(_stamp(path) for path in self._files)

    @contextlib.contextmanager
    def _named(self, what: str, *paths: Path) -> Iterator[None]:
        """Raises: AccessError for a file that cannot be used."""
        try:
            yield
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = getattr(error, "filename", None)
            # Of a file in memory the name says nothing.
            known = [str(path) for path in paths]
            at = named if named in known else " and ".join(known)
            cause = error.strerror if isinstance(error, OSError) else error
            raise AccessError(
                f"use the {what} {'in ' + at + ' ' if at else ''}of {self.access.source}: {cause} "
                "(put a good one there: it is read again by itself)"
            ) from error


def _context(access: Access) -> ssl.SSLContext:
    """Raises: OSError, ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    if access.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=_pem(access.ca).decode("ascii"))
    if access.certificate is not None and access.key is not None:
        with _as_file(access.certificate) as certificate, _as_file(access.key) as key:
            # No password is asked for at a terminal that nobody sits at.
            context.load_cert_chain(certificate, key, password="")
    return context


def _pem(material: Material) -> bytes:
    return _read(material, API_CERTIFICATES.most) if isinstance(material, Path) else material


@contextlib.contextmanager
def _as_file(material: Material) -> Iterator[str]:
    """OpenSSL reads a chain and a key from files only; what is inline never gets on a disk."""
    if isinstance(material, Path):
        yield str(material)
        return
    memory = os.memfd_create("limpet-kubernetes")
    try:
        os.write(memory, material)
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)


def _read(path: Path, most_bytes: int) -> bytes:
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes >> 10} KiB")
    return content


def _stamp(path: Path) -> Stamp:
    """Another one when the file was written or replaced. Raises: OSError."""
    found = os.stat(path)
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size
