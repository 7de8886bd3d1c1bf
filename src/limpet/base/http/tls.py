"""TLS towards those who prove themselves by their certificate, at any time of the clock."""

from __future__ import annotations

import ssl

NO_CHECK_TIME = 0x200000
"""X509_V_FLAGNO_CHECK_TIME. Source: openssl/x509_vfy.h; Python's ssl does not name it."""


def client_context(ca: str | None) -> ssl.SSLContext:
    """TLS 1.3 towards a controller of this CA (PEM); None: towards anybody, who proves nothing.

    Certificates are not checked against the clock: that of an edge node may say 1970.
    Raises: ssl.SSLError for what is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=ca)
    return context
