"""The CNI protocol: environment and stdin to a request, a result or an error to stdout.

What goes wrong with the input is a CniError with the code that the specification names, its text
saying which field, with which value, and why.
"""

from limpet.cni.protocol.conf import VERSIONS
from limpet.cni.protocol.request import DEFAULT_VERSION, parse_request, reply_version
from limpet.cni.protocol.result import encode_error, encode_result, parse_result, version_reply

__all__ = [
    "DEFAULT_VERSION",
    "VERSIONS",
    "encode_error",
    "encode_result",
    "parse_request",
    "parse_result",
    "reply_version",
    "version_reply",
]
