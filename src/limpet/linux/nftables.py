"""Our nftables table, through libnftables in this process: no command is started.

Source: libnftables(3).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import NFT_TABLE
from limpet.base.process.memory import give_memory_back
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from limpet.linux.netlink.transactions import NftablesSocket

_SONAME = "libnftables.so.1"
_NFT_CTX_OUTPUT_STATELESS = 1 << 2
_COUNTED = re.compile(r"\t# count \d+$", re.MULTILINE)
"""How many elements a set with a size has at the moment, which newer versions of nft tell."""
_PRIORITY = "hook output priority -100;"
_NAMED_PRIORITY = "hook output priority dstnat;"
"""The same: older versions of nft know that name for prerouting alone."""
_LARGE_BYTES = 64 << 10
"""Size of commands and output beyond which what libnftables keeps of them is freed."""
_TRIES = 8


class Nftables:
    """For the network namespace of the thread that makes and uses it."""

    def __init__(
        self,
        table: str = NFT_TABLE,
        *,
        family: str = "inet",
        netlink: NftablesSocket | None = None,
    ) -> None:
        """`table`: the one of ours that it is for. `netlink`: what this does comes by another's
        socket, so that it may change tables that belong to it. Raises: LimpetError without the
        library, KernelError without nftables in the kernel."""
        self._thread = threading.get_ident()
        self._table = table
        self._at = f"{family} {table}"
        try:
            self._lib = ctypes.CDLL(_SONAME)
        except OSError as error:
            raise LimpetError(
                f"load {_SONAME}: {error} (install libnftables1, part of the package nftables)"
            ) from error
        self._lib.nft_ctx_new.restype = ctypes.c_void_p
        self._lib.nft_ctx_new.argtypes = [ctypes.c_uint32]
        for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
            function = getattr(self._lib, name)
            function.restype = ctypes.c_char_p
            function.argtypes = [ctypes.c_void_p]
        for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error"):
            getattr(self._lib, name).argtypes = [ctypes.c_void_p]
        self._lib.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._lib.nft_ctx_free.argtypes = [ctypes.c_void_p]
        self._lib.nft_ctx_set_dry_run.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        self._lib.nft_ctx_output_get_flags.argtypes = [ctypes.c_void_p]
        self._lib.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._netlink = netlink
        context = self._new_context()
        self.shares = netlink is not None and context is not None
        """What this does comes by the socket that was given."""
        if context is None:
            self._netlink, context = None, self._begin()
        self._context = context
        self._put = _Print("")
        self._printed = _Print("")
        """What was put last, and what nft printed right after."""

    def _begin(self) -> ctypes.c_void_p:
        """Raises: KernelError."""
        # libnftables ends the whole process where it gets no socket (src/mnl.c).
        NetlinkSocket(NETLINK_NETFILTER).close()
        context = ctypes.c_void_p(self._lib.nft_ctx_new(0))
        self._lib.nft_ctx_buffer_output(context)
        self._lib.nft_ctx_buffer_error(context)
        return context

    def _new_context(self) -> ctypes.c_void_p | None:
        """With the socket that was given, if one was; None: it did not take it."""
        if self._netlink is None:
            return self._begin()
        for _ in range(_TRIES):
            before = _open_files()
            context = self._begin()
            # That of the context is among them. Another thread's may be so too.
            made = [at for at, _ in _open_files() - before if _is_fresh_netfilter(at)]
            if len(made) == 1:
                self._netlink.stand_in_for(made[0])
                return context
            self._lib.nft_ctx_free(context)
        return None

    def close(self) -> None:
        """Once more is nothing: what libnftables is given after its end ends the process."""
        if self._context:
            self._lib.nft_ctx_free(self._context)
            self._context = ctypes.c_void_p()

    def _check(self, what: str) -> None:
        """Raises: RuntimeError for what would end the process."""
        if threading.get_ident() != self._thread:
            # Two at once read each other's answers, upon which libnftnl ends the process.
            raise RuntimeError(f"{what}: nftables is asked by another thread than made it")
        if not self._context:
            raise RuntimeError(f"{what}: nftables is asked after it was closed")

    def run(self, commands: str, *, what: str) -> str:
        """Runs the commands as one transaction; returns what they print. Raises: KernelError."""
        self._check(what)
        if self._netlink is not None:
            self._netlink.quiet()
        failed = self._lib.nft_run_cmd_from_buffer(self._context, commands.encode())
        output: bytes = self._lib.nft_ctx_get_output_buffer(self._context)
        text: bytes = self._lib.nft_ctx_get_error_buffer(self._context)
        if len(commands) + len(output) > _LARGE_BYTES:
            self._start_over()
        if failed:
            words = text.decode(errors="replace").strip()
            number = errno.ENOENT if "No such file or directory" in words else errno.EINVAL
            raise KernelError("run nft for", what, number, words.split("\n")[0])
        return output.decode(errors="replace")

    def check(self, commands: str, *, what: str) -> None:
        """The kernel would take the commands as one transaction; nothing comes of it.

        Raises: KernelError where it would not.
        """
        self._check(what)
        self._lib.nft_ctx_set_dry_run(self._context, True)
        try:
            self.run(commands, what=what)
        finally:  # a context that began meanwhile has it not
            self._lib.nft_ctx_set_dry_run(self._context, False)

    def _start_over(self) -> None:
        """A context keeps what it has parsed and listed: of 5,000 peers' filter 17 MB."""
        fresh = self._new_context()
        if fresh is None:
            return
        flags = self._lib.nft_ctx_output_get_flags(self._context)
        self._lib.nft_ctx_free(self._context)
        self._context = fresh
        self._lib.nft_ctx_output_set_flags(self._context, flags)
        give_memory_back()

    def list_table(self) -> str | None:
        """Our table as nft prints it, without what was counted; None when it is not there."""
        try:
            with self.printing(_NFT_CTX_OUTPUT_STATELESS):
                listed = self.run(f"list table {self._at}", what=f"table {self._table}")
                return _COUNTED.sub("", listed).replace(_NAMED_PRIORITY, _PRIORITY)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    @contextmanager
    def printing(self, flags: int) -> Iterator[None]:
        """Within the block, output is as these flags say too. Source: libnftables(3)."""
        self._check(f"table {self._table}")
        before = self._lib.nft_ctx_output_get_flags(self._context)
        self._lib.nft_ctx_output_set_flags(self._context, before | flags)
        try:
            yield
        finally:
            self._lib.nft_ctx_output_set_flags(self._context, before)

    def read_counter(self, name: str) -> int:
        """Packets that a counter of our table has seen; 0 when it is not there.

        Tables are read without counters, since what these say is part of no plan.
        """
        try:
            listed = self.run(f"list counter {self._at} {name}", what=f"counter {name}")
        except KernelError:
            return 0
        found = re.search(r"packets (\d+)", listed)
        return int(found[1]) if found else 0

    def put_table(self, ruleset: str, *, adding: str = "", within: bool = False) -> None:
        """Our table becomes `ruleset` (empty: there is none); no packet meets neither. `adding`:
        commands that fill its sets, where the ruleset has no elements. `within`: the table, which
        is there, stays whose it is, and what it has is replaced."""
        is_listed = within or may_have_sets_first(ruleset)
        self._replace((self.list_table() or "") if is_listed else "", ruleset, adding, within)

    def _replace(self, listing: str, ruleset: str, adding: str, within: bool) -> None:
        steps = sets_first(self._at, listing, ruleset, adding)
        if steps is None and within:
            steps = (contents_replaced(self._at, listing, ruleset) + adding,)
        elif steps is None:
            steps = (f"add table {self._at}\ndelete table {self._at}\n{ruleset}{adding}",)
        for commands in filter(None, steps):
            self.run(commands, what=f"table {self._table}")
        self._put, self._printed = _Print(ruleset, adding), _Print(self.list_table() or "")

    def keep(self, wanted: str) -> bool:
        """Our table is `wanted` (empty: there is none) when this returns; True: it was not before.

        Raises: KernelError.
        """
        found = self.read_ruleset(wanted)
        if found == wanted:
            return False
        self._replace(found, wanted, adding="", within=False)
        return True

    def read_table(self) -> TableListing:
        """Our table, to be compared with one that is planned as a frame and elements.

        Large maps (Services, sets of policies) are read as the kernel holds them instead
        (`SetElements`), since libnftables keeps two kilobytes of each element. Raises: KernelError.
        """
        frame, elements = split_listing(self.list_table() or "")
        return TableListing(self._put.frame if frame == self._printed.frame else frame, elements)

    def read_ruleset(self, wanted: str) -> str:
        """`wanted` when the kernel has just that, else what it has (empty: nothing).

        nft prints some things in other words than it takes them, so what it printed right after
        `wanted` was put counts as `wanted` too; elements that have come or gone since are compared
        one by one. Raises: KernelError.
        """
        listed = self.list_table() or ""
        return (
            wanted if listed == wanted or (listed and self._is_the_same(listed, wanted)) else listed
        )

    def _is_the_same(self, listed: str, wanted: str) -> bool:
        printed, put = _Print(listed), _Print(wanted)
        if (printed.frame, put.frame) != (self._printed.frame, self._put.frame):
            # Put by another process, or not at all: nft has an element a line where they are long.
            return split_listing(listed) == split_listing(wanted)
        if (printed.whole, put.whole) == (self._printed.whole, self._put.whole):
            return True
        return split_listing(listed)[1] == split_listing(wanted)[1]


def _open_files() -> set[tuple[int, int]]:
    """Numbers of this process's descriptors, and of what they lead to, which is never another's."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.fstat(int(name)).st_ino))
        except OSError:  # closed meanwhile, as that by which they are listed
            continue
    return found


def _is_fresh_netfilter(descriptor: int) -> bool:
    """A socket for netfilter's messages which has no number yet: it gets one when it first sends,
    and libnftables may have learnt it."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # no socket, or closed already
        return False
    try:
        kind = (found.family, found.proto)
        return kind == (socket.AF_NETLINK, NETLINK_NETFILTER) and found.getsockname()[0] == 0
    except OSError:  # closed meanwhile
        return False
    finally:
        found.detach()


Elements = dict[str, frozenset[str]]
"""Elements by the name of their set or map, as nft prints them but for quotes and white space."""


class TableListing(NamedTuple):
    frame: str
    """The table without elements: as it was put, where nft prints what it printed right after
    that, else as it prints it; empty: there is no table."""
    elements: Elements
    """But for those that packets have put there."""


_BLOCK = re.compile(r"\n\t(?:map|set) (\S+) \{\n(.*?)\n\t\}", re.DOTALL)
_ELEMENTS = re.compile(r"\n\t\telements = \{(.*?)\}", re.DOTALL)
_DYNAMIC = "flags dynamic"


def split_listing(listing: str) -> TableListing:
    """Splits a table, as nft prints it, into its frame and its elements."""
    elements: Elements = {}
    for name, text in _BLOCK.findall(listing):
        found = _ELEMENTS.search("\n" + text)
        if found and _DYNAMIC not in text:
            elements[name] = _items(found[1])
    return TableListing(_ELEMENTS.sub("", listing), elements)


def _items(text: str) -> frozenset[str]:
    items = text.replace('"', "").split(",")
    return frozenset(words for item in items if (words := " ".join(item.split())))


_OBJECT = re.compile(r"^\t(chain|set|counter) (\S+) \{\n(.*?)^\t\}", re.MULTILINE | re.DOTALL)
_OTHER_OBJECT = re.compile(r"^\t(?!(?:chain|set|counter) \S+ \{$)\S.*\{$", re.MULTILINE)
_OF_THE_TABLE = re.compile(r"^\t(?:comment |flags (?!owner))", re.MULTILINE)
"""What goes with the table alone, as `flags dormant`, with which no rule is asked."""
_IN_ORDER = {"chain": 0, "set": 1, "counter": 2}
"""Kinds that may go one after the other, since those before are what leads to those behind."""
_ADDING = re.compile(r"^add element \S+ \S+ (\S+) \{(.*)\}$", re.MULTILINE)
_INTERVALS = "flags interval"
_Objects = list[tuple[str, str, str]]
"""Kind, name and lines of each object of a table, without elements."""


def contents_replaced(table: str, listing: str, ruleset: str) -> str:
    """Commands that have a table hold what `ruleset` says in place of what it was listed with. None
    is about the table itself, whose owner it would take away.

    `table`: its family and name. `ruleset`: sets and chains without elements, a line for each rule.
    """
    return _replaced(table, _OBJECT.findall(listing), _OBJECT.findall(ruleset))


def may_have_sets_first(ruleset: str) -> bool:
    """Whether something in it is looked up in intervals, and all of it can be put in steps."""
    return _INTERVALS in ruleset and not _OTHER_OBJECT.search(ruleset)


def sets_first(table: str, listing: str, ruleset: str, adding: str) -> tuple[str, ...] | None:
    """The same in two transactions: the first fills the sets, the second puts the rules in place of
    those that are there. In one, packets of that moment would find new sets of intervals without
    their elements, since the kernel fills these last (nft_set_commit_update), and be dropped.

    `adding`: commands that fill sets as well. None: there is no need to, or no way; or what is
    there has another set, or something that is not wanted.
    """
    if not may_have_sets_first(ruleset):
        return None
    fills = {
        name: found[1]
        for name, body in _BLOCK.findall(ruleset)
        if (found := _ELEMENTS.search(f"\n{body}"))
    } | dict(_ADDING.findall(adding))
    (frame, held), wanted = split_listing(listing), split_listing(ruleset).frame
    before, after = _OBJECT.findall(frame), _OBJECT.findall(wanted)
    have, want = ([each for each in found if each[0] == "set"] for found in (before, after))
    old, new = ([each for each in found if each[0] != "set"] for found in (before, after))
    if (
        _OTHER_OBJECT.search(frame)
        or _OF_THE_TABLE.search(frame)
        or any(each not in want for each in have)
        or any(not found <= _items(fills.get(name, "")) for name, found in held.items())
    ):
        return None
    first = [] if listing else [f"add table {table}"]
    first += [_add_command(table, each) for each in want if each not in have]
    first += [
        f"add element {table} {name} {{{text}}}"
        for name, text in fills.items()
        if _items(text) != held.get(name)
    ]
    return "".join(f"{line}\n" for line in first), _replaced(table, old, new)


def _replaced(table: str, before: _Objects, after: _Objects) -> str:
    before = sorted(before, key=lambda each: _IN_ORDER[each[0]])
    after = sorted(after, key=lambda each: -_IN_ORDER[each[0]])
    commands, rules = [f"flush table {table}"], list[str]()
    commands += [f"delete {kind} {table} {name}" for kind, name, _ in before]
    for kind, name, body in after:
        lines = [line.strip() for line in body.splitlines()]
        if kind == "chain":
            is_base = bool(lines) and lines[0].startswith("type ")
            rules += [f"add rule {table} {name} {rule}" for rule in lines[is_base:]]
            body = "".join(lines[:is_base])
        commands.append(_add_command(table, (kind, name, body)))
    return "".join(f"{line}\n" for line in (*commands, *rules))


def _add_command(table: str, what: tuple[str, str, str]) -> str:
    kind, name, body = what
    lines = "; ".join(line.strip() for line in body.splitlines())
    return f"add {kind} {table} {name}" + (f" {{ {lines}; }}" if lines else "")


class _Print:
    """What tells a table's text from others: thousands of elements are not kept for that."""

    def __init__(self, text: str, adding: str = "") -> None:
        self.whole = hashlib.sha256(f"{text}{adding}".encode()).digest()
        self.frame = _ELEMENTS.sub("", text)
