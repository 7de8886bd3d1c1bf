"""The cluster's own keys: its CA, its signing key, and the certificates that they make.

Certificates run from 1970 to 9999: edge clocks are wrong, and a node is revoked by its grant.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from limpet.base.disk import refusals
from limpet.base.errors import StorageError
from limpet.cluster.api import SERVER_NAME, ca_digest
from limpet.cluster.keys import ClusterKey, public_key_of, uid_of
from limpet.cluster.kinds import NETWORK
from limpet.cluster.kinds.network import Network
from limpet.controller.registry.reading import LOST_SECRETS
from limpet.controller.registry.records import (
    AUTHORITY,
    STATE,
    AuthorityRecord,
    StateRecord,
)
from limpet.controller.registry.rotation import chain_of
from limpet.controller.registry.tables import Tables

_FOREVER = (
    datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).replace(tzinfo=None),
)


def new_key() -> bytes:
    """An Ed25519 private key, 32 bytes."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def create_cluster(tables: Tables, network: Network) -> None:
    """CA, signing key and the first network. `network` names no keys yet."""
    ca_key, cluster_key = new_key(), new_key()
    certificate = _certificate(
        f"limpet {network.cluster}",
        Ed25519PrivateKey.from_private_bytes(ca_key).public_key(),
        ca_key,
    )
    tables.put(AUTHORITY, AUTHORITY, AuthorityRecord(ca_key, certificate, (cluster_key,)))
    tables.put(STATE, STATE, StateRecord(revision=1, marks={}))
    keys = (ClusterKey(public_key_of(cluster_key)),)
    tables.sign(NETWORK, replace(network, generation=1, revision=1, keys=keys))


def remake_network(tables: Tables, network: Network) -> None:
    """Signs it as a first one where it was taken away by hand; nodes show theirs, which are newer.

    Keys are the authority's, so what they signed goes on to count.
    """
    authority = tables.authority
    again = replace(
        network,
        generation=1,
        revision=tables.next_revision(),
        keys=chain_of(authority),
        rotated_at=authority.rotated_at,
    )
    tables.sign(NETWORK, again)


def digest_of(authority: AuthorityRecord) -> bytes:
    """SHA-256 of the CA's certificate, as join tokens carry it."""
    return ca_digest(ssl.PEM_cert_to_DER_cert(authority.ca_certificate))


def node_certificate(authority: AuthorityRecord, public_key: bytes) -> str:
    """PEM; names the node's uid. A node that relays shows it as a server's, too."""
    key = Ed25519PublicKey.from_public_bytes(public_key)
    return _certificate(uid_of(public_key), key, authority.ca_key, authority.ca_certificate)


def uid_of_certificate(der: bytes) -> str | None:
    """The node that a client certificate of ours names; None: it names none."""
    key = x509.load_der_x509_certificate(der).public_key()
    if not isinstance(key, Ed25519PublicKey):
        return None
    return uid_of(key.public_bytes_raw())


def server_context(authority: AuthorityRecord) -> ssl.SSLContext:
    """TLS 1.3 with a fresh server key; a client's certificate is asked for, not required.

    Raises: StorageError, also for secrets that are none.
    """
    key = Ed25519PrivateKey.generate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        certificate = _certificate(
            SERVER_NAME, key.public_key(), authority.ca_key, authority.ca_certificate, server=True
        )
        context.load_verify_locations(cadata=authority.ca_certificate)
    except (ValueError, TypeError, ssl.SSLError) as error:
        raise StorageError(
            "read", "the cluster's secrets", str(error), hint=LOST_SECRETS
        ) from error
    with _secret_file(certificate.encode() + _pem(key)) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _secret_file(content: bytes) -> Iterator[Path]:
    """OpenSSL's binding reads keys from files only. In memory where there is /dev/shm."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        refusals("write", Path(folder or tempfile.gettempdir())),
        tempfile.NamedTemporaryFile(dir=folder) as file,  # mode 0600
    ):
        file.write(content)
        file.flush()
        yield Path(file.name)


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate(
    name: str,
    public_key: Ed25519PublicKey,
    signing_key: bytes,
    ca_certificate: str = "",
    *,
    server: bool = False,
) -> str:
    """PEM. Without `ca_certificate` it is a CA's own."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signer = Ed25519PrivateKey.from_private_bytes(signing_key)
    issuer = subject
    if ca_certificate:
        issuer = x509.load_pem_x509_certificate(ca_certificate.encode()).subject
    is_ca = not ca_certificate
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if not server:
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FOREVER[0])
        .not_valid_after(_FOREVER[1])
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), True)
        .add_extension(_key_usage(is_ca=is_ca), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    if not is_ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
    return builder.sign(signer, None).public_bytes(serialization.Encoding.PEM).decode()


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
