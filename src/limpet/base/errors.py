"""The exception tree.

LimpetError                 anything we raise on purpose; its text is for the person at the node
├── ConfigError             a configuration value is wrong: names the value, the field, the source
│   └── CommandLineError      so is an option or an argument: exit code 2
├── StorageError            a file could not be read or written: names the file
├── KernelError             the kernel refused an operation: carries errno
├── AddressError            an address could not be given
│   ├── ExhaustedError        none is free
│   └── UnavailableError      the one asked for is held by another or is outside the ranges
├── AgentUnavailable        the agent does not answer on its socket
├── ControllerUnavailable   the controller does not answer on its socket
├── NotAllowedError         whoever asks may not: there may well be somebody who answers
├── FrameError              bytes on the socket that are no frame of ours (cni/frames.py)
├── LabError                something of the lab did not work (lab/command.py)
└── CniError                carries a CNI error code; what the runtime sees
"""

from __future__ import annotations

import errno as errno_names
from enum import IntEnum


class CniCode(IntEnum):
    """CNI error codes. Source: CNI SPEC.md 1.1.0, section 'Error'; 100 and up are ours."""

    INCOMPATIBLE_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODE_FAILURE = 6
    INVALID_NETWORK_CONFIG = 7
    TRY_AGAIN_LATER = 11
    NOT_AVAILABLE = 50
    NOT_AVAILABLE_LIMITED = 51
    ADDRESSES_EXHAUSTED = 100
    ADDRESS_UNAVAILABLE = 101
    KERNEL_REFUSED = 102
    STORAGE_FAILED = 103
    INTERFACE_EXISTS = 104
    CHECK_FAILED = 105
    INTERNAL = 199


class LimpetError(Exception):
    """`<operation> <object>: <cause>`, lower case, values included."""

    code: CniCode | None = None
    """What a runtime is told; None: it means nothing to a runtime, and is a defect there."""


def why_no_answer(error: OSError, unit: str) -> str:
    """Why nobody answers on a socket of this machine, and what to do; `unit`: systemd's, of who
    should."""
    if error.errno in (errno_names.EACCES, errno_names.EPERM):
        return "permission denied (only root may ask: sudo)"
    return f"{error.strerror or error} (is it running? systemctl status {unit})"


class ConfigError(LimpetError):
    """A configuration value that cannot be used."""

    code = CniCode.INVALID_NETWORK_CONFIG


class CommandLineError(ConfigError):
    """Options or arguments that cannot be used; nothing was done."""


class StorageError(LimpetError):
    """A file that could not be read or written."""

    code = CniCode.STORAGE_FAILED

    def __init__(self, operation: str, path: str, cause: str, *, hint: str = "") -> None:
        super().__init__(f"{operation} {path}: {cause}" + (f" ({hint})" if hint else ""))
        self.path = path


class KernelError(LimpetError):
    """The kernel refused `operation` on `what` with `errno` (positive)."""

    code = CniCode.KERNEL_REFUSED

    def __init__(self, operation: str, what: str, errno: int, detail: str = "") -> None:
        name = errno_names.errorcode.get(errno, str(errno))
        super().__init__(f"{operation} {what}: {name}" + (f" ({detail})" if detail else ""))
        self.operation = operation
        self.what = what
        self.errno = errno


class AddressError(LimpetError):
    """An address could not be given."""

    code = CniCode.ADDRESS_UNAVAILABLE


class ExhaustedError(AddressError):
    """No address is free in a network's ranges."""

    code = CniCode.ADDRESSES_EXHAUSTED


class UnavailableError(AddressError):
    """The address that was asked for cannot be given."""


class AgentUnavailable(LimpetError):
    """The agent does not answer on its socket."""


class ControllerUnavailable(LimpetError):
    """The controller does not answer on its socket."""


class NotAllowedError(LimpetError):
    """Who asks may not ask; whether anybody would answer is not known."""


class CniError(LimpetError):
    """A CNI error: `msg` is one line, `details` says where and what to do."""

    code: CniCode

    def __init__(self, code: CniCode, msg: str, details: str = "") -> None:
        super().__init__(f"{msg} ({details})" if details else msg)
        self.code = code
        self.msg = msg
        self.details = details
