"""What the page in the cloud proves itself by: a certificate that is given, or one of its own.

Not the controller's: that has an Ed25519 key, as all of the cluster, which no browser takes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from limpet.base.disk import refusals, write_durably
from limpet.base.errors import LimpetError
from limpet.base.timer import Timer

_FOR = timedelta(days=397)
"""Browsers take none that runs longer."""
_BEFORE = timedelta(days=30)
_NAME = "page"
_LOOK_EVERY_S = 60.0
_log = structlog.get_logger("page")


def context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raises: LimpetError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise LimpetError(
            f"serve the page with the certificate in {certificate} and the key in {key}: {error} "
            "(both are PEM, the certificate with its chain, and belong together)"
        ) from error
    return context


class Renewal:
    """Has a server of TLS go on with a certificate of its own that is made anew meanwhile. For one
    event loop."""

    def __init__(self, context: ssl.SSLContext, renew: Callable[[], tuple[Path, Path]]) -> None:
        """`renew`: certificate and key, as `own_certificate` has them now."""
        self._context = context
        self._renew = renew
        self._timer = Timer("certificate", self.look)
        self._fingerprint = ""
        self._problem = ""

    def look(self) -> None:
        """Now, and again and again: the clock may be set, and the page may run for years."""
        self._timer.set_in(_LOOK_EVERY_S)
        try:
            certificate, key = self._renew()
            found = fingerprint(certificate)
            if found != self._fingerprint:
                self._context.load_cert_chain(certificate, key)
                if self._fingerprint:
                    _log.info("the certificate was made anew", fingerprint=found)
            self._fingerprint, self._problem = found, ""
        except (LimpetError, OSError) as error:
            if str(error) != self._problem:
                _log.warning("the certificate cannot be looked at", error=str(error))
            self._problem = str(error)

    def stop(self) -> None:
        self._timer.stop()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def own_certificate(
    folder: Path, names: Collection[str], now: Callable[[], datetime] = _utc_now
) -> tuple[Path, Path]:
    """Certificate and key of `folder`, made where they are not there, are for other names, near
    their end or not valid yet, by a clock that was ahead. Raises: StorageError."""
    paths = (folder / f"{_NAME}.crt", folder / f"{_NAME}.key")
    wanted = sorted({*names, "localhost"})
    if _serves(paths, wanted, now()):
        return paths
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(key, wanted, now())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with refusals("write", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(paths[1], private)
    write_durably(paths[0], certificate.public_bytes(serialization.Encoding.PEM))
    return paths


def fingerprint(certificate: Path) -> str:
    """SHA-256 as browsers show it. Raises: StorageError."""
    with refusals("read", certificate):
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return found.fingerprint(hashes.SHA256()).hex(":").upper()


def _serves(paths: tuple[Path, Path], names: list[str], now: datetime) -> bool:
    try:
        found = x509.load_pem_x509_certificate(paths[0].read_bytes())
        said = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc - _BEFORE
    same = sorted(str(each.value) for each in said) == names
    return same and paths[1].exists() and begins <= now < ends


def _signed(key: ec.EllipticCurvePrivateKey, names: list[str], now: datetime) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "limpet ui")])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _FOR - timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general, names))), False)
        .sign(key, hashes.SHA256())
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
