"""Why a connection did not come about, or has ended, in words for a person."""

from __future__ import annotations

import os
import socket
import ssl


def cause_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it is not of this node's cluster: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):  # its number is none of errno's
        return error.strerror or str(error)
    # The loop puts words of its own in the place of the system's.
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
