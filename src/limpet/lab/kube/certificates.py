"""Who is who in a cluster of the lab: one authority, certificates, kubeconfig files."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """A cluster's certificate authority; what it has issued stands in its folder."""

    def __init__(self, folder: Path) -> None:
        """Made when it is not there yet."""
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        if not self.certificate.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make()

    def _make(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("limpet-lab", ())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, key)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, SHA256())
        )
        _write(self.key, _pem(key))
        _write(self.certificate, certificate.public_bytes(Encoding.PEM))

    def issue(
        self, file: str, name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> CertificateFiles:
        """For a user `name` of `groups`, or a server at `hosts` (names and addresses), or both."""
        issued = CertificateFiles(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        if issued.certificate.exists():
            return issued
        ca = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        ca_key = load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(_name(name, groups), key)
            .issuer_name(ca.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(each) for each in hosts])
            builder = builder.add_extension(names, critical=False)
        _write(issued.key, _pem(key))
        _write(issued.certificate, builder.sign(ca_key, SHA256()).public_bytes(Encoding.PEM))
        return issued

    def signing_key(self, file: str) -> tuple[Path, Path]:
        """Files of a key and of its public half, such as service accounts' tokens are signed by."""
        private, public = self.folder / f"{file}.key", self.folder / f"{file}.pub"
        if not public.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            _write(private, _pem(key))
            encoded = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            _write(public, encoded)
        return private, public

    def write_kubeconfig(self, path: Path, server: str, user: CertificateFiles) -> Path:
        """For `user` at `server` (a URL), with everything in it; returns `path`."""
        text = _KUBECONFIG.format(
            server=server,
            ca=_base64(self.certificate),
            certificate=_base64(user.certificate),
            key=_base64(user.key),
        )
        _write(path, text.encode())
        return path


_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: user
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: lab
  context:
    cluster: lab
    user: user
current-context: lab
"""


def _builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(name: str, groups: Sequence[str]) -> x509.Name:
    """A user and its groups, as an API server reads them from a certificate."""
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write(path: Path, data: bytes) -> None:
    """As a whole or not at all, for the owner alone."""
    fresh = path.with_name(f".{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    fresh.rename(path)
