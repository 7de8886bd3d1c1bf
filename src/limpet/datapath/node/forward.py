"""Another's FORWARD chains that drop, held open for our bridges where that is asked for.

An accept in our own table does not override a drop in another's base chain on the same hook, so
the rule has to stand in theirs: one for each direction and bridge, at the top, marked by its
comment. Everything else in these chains is left alone.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_TABLE
from limpet.base.process.programs import find_program
from limpet.linux.nftables import Nftables

COMMENT = "limpet"
_DIRECTIONS = {"iifname": "-i", "oifname": "-o"}
_NFT_CTX_OUTPUT_HANDLE = 1 << 3
_LEGACY = {
    "iptables-legacy": "ip_tables_names",
    "ip6tables-legacy": "ip6_tables_names",
}
"""Command, and the file below /proc/net that names the tables it would show."""


class HandleNftables(Nftables):
    """Lists rules with their handles, by which nft deletes them. Source: libnftables(3)."""

    def __init__(self) -> None:
        super().__init__()
        self._lib.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._lib.nft_ctx_output_set_flags(self._context, _NFT_CTX_OUTPUT_HANDLE)


@dataclass(frozen=True, slots=True)
class AcceptRule:
    """One of our rules in another's chain."""

    direction: str
    """iifname or oifname."""
    bridge: str
    handle: str = ""
    """Empty for iptables-legacy, which deletes by content."""


@dataclass(frozen=True, slots=True)
class ForwardChain:
    """A base chain on the forward hook that is not ours."""

    tool: str
    """nft, iptables-legacy or ip6tables-legacy."""
    family: str
    table: str
    name: str
    cause: str
    """Why what no rule of it accepts is dropped: `policy drop`; empty when it is not."""
    rules: tuple[AcceptRule, ...] = ()

    def accepts(self, bridge: str) -> bool:
        """Our rules for that bridge are there, both directions."""
        there = {(rule.direction, rule.bridge) for rule in self.rules}
        return there >= {(way, bridge) for way in _DIRECTIONS}

    def __str__(self) -> str:
        if self.tool == "nft":
            return f"nftables chain {self.family} {self.table} {self.name}"
        return f"{self.tool} chain {self.name}"


def read_forward_chains(nft: HandleNftables) -> list[ForwardChain]:
    """Base chains on the forward hook of IPv4, IPv6 and both. Raises: KernelError.

    Those of iptables-nft are seen as what they are, nftables chains.
    """
    return [*_nft_chains(nft), *_legacy_chains()]


def unreadable_legacy_tables() -> list[str]:
    """Legacy commands whose tables the kernel has, but that are not installed."""
    return [command for command in _legacy_in_use() if _legacy_command(command) is None]


def ensure_forward_accept(nft: HandleNftables, bridges: Iterable[str]) -> bool:
    """Every chain that drops has our rules for these bridges, and no others of ours; True: changed.

    Raises: KernelError.
    """
    wanted = {(way, bridge) for bridge in bridges for way in _DIRECTIONS}
    changed = False
    for chain in read_forward_chains(nft):
        changed |= _set_rules(nft, chain, wanted if chain.cause else set())
    return changed


def remove_forward_accept(nft: HandleNftables) -> list[str]:
    """Takes our rules out of every chain; returns the chains that had some. Raises: KernelError."""
    return [str(chain) for chain in read_forward_chains(nft) if _set_rules(nft, chain, set())]


def _set_rules(nft: HandleNftables, chain: ForwardChain, wanted: set[tuple[str, str]]) -> bool:
    missing = set(wanted)
    surplus = []
    for rule in chain.rules:
        key = (rule.direction, rule.bridge)
        if key in missing:
            missing.remove(key)
        else:
            surplus.append(rule)
    if not missing and not surplus:
        return False
    if chain.tool == "nft":
        where = f"{chain.family} {chain.table} {chain.name}"
        commands = [f"delete rule {where} handle {rule.handle}" for rule in surplus]
        commands += [
            f'insert rule {where} {way} "{bridge}" counter accept comment "{COMMENT}"'
            for way, bridge in sorted(missing)
        ]
        nft.run("\n".join(commands) + "\n", what=str(chain))
        return True
    for rule in surplus:
        _run_legacy(chain.tool, "-D", chain.name, *_legacy_rule(rule.direction, rule.bridge))
    for way, bridge in sorted(missing):
        _run_legacy(chain.tool, "-I", chain.name, *_legacy_rule(way, bridge))
    return True


# nftables.

_TABLE = re.compile(r"table (\S+) (\S+) \{")
_CHAIN = re.compile(r"\tchain (\S+) \{")
_FILTER_HOOK = re.compile(r"\t\ttype filter hook (\w+) .*?;(?: policy (\w+);)?")
_OWN_RULE = re.compile(
    r'\t\t(iifname|oifname) "([^"]+)" (?:counter packets \d+ bytes \d+ )?accept '
    rf'comment "{COMMENT}" # handle (\d+)'
)
_LAST_VERDICT = re.compile(
    r"\t\t(?:(?:counter(?: packets \d+ bytes \d+)?"
    r'|log(?: (?:prefix "[^"]*"|level \w+|flags [\w ,]+|group \d+|snaplen \d+))*) )*'
    r'(?P<verdict>drop|reject(?: with [\w -]+?)?|xt target "(?:DROP|REJECT)"'
    r"|(?:jump|goto) (?P<target>\S+))"
    r'(?: comment "[^"]*")?(?: # handle \d+)?'
)
"""A rule without a match: whatever comes to it meets its verdict."""


def _nft_chains(nft: HandleNftables) -> Iterator[ForwardChain]:
    for family, table, name, policy in base_chains(nft, "forward"):
        lines = list_chain(nft, family, table, name)
        cause = drop_cause(nft, family, table, name, policy)
        rules = (AcceptRule(*found.groups()) for line in lines if (found := _OWN_RULE.match(line)))
        yield ForwardChain("nft", family, table, name, cause, tuple(rules))


def base_chains(nft: HandleNftables, hook: str) -> Iterator[tuple[str, str, str, str]]:
    """Others' filter chains on a hook of IPv4, IPv6 and both: family, table, name, policy.

    Raises: KernelError.
    """
    family = table = chain = ""
    for line in nft.run("list chains", what="chains").splitlines():
        if found := _TABLE.match(line):
            family, table = found.groups()
        elif found := _CHAIN.match(line):
            chain = found[1]
        elif not _is_another_s(family, table):
            continue
        elif (found := _FILTER_HOOK.match(line)) and found[1] == hook:
            yield family, table, chain, found[2] or "accept"


def _is_another_s(family: str, table: str) -> bool:
    ours = family == "inet" and (table == NFT_TABLE or table.startswith(f"{NFT_TABLE}_"))
    return family in ("ip", "ip6", "inet") and not ours


def drop_cause(nft: HandleNftables, family: str, table: str, name: str, policy: str) -> str:
    """Why a chain drops what no rule of it accepts; empty when it does not. Raises: KernelError."""
    if policy == "drop":
        return "policy drop"
    return _nft_end(nft, family, table, list_chain(nft, family, table, name), {name})


def list_chain(nft: HandleNftables, family: str, table: str, name: str) -> list[str]:
    """Its lines as nft prints them, the one of its hook among them. Raises: KernelError."""
    listing = nft.run(f"list chain {family} {table} {name}", what=f"chain {table} {name}")
    return [line for line in listing.splitlines() if line.startswith("\t\t")]


def _nft_end(nft: HandleNftables, family: str, table: str, lines: list[str], seen: set[str]) -> str:
    """What the chain's last rule does to everything, where that is dropping it."""
    found = _LAST_VERDICT.fullmatch(lines[-1]) if lines else None
    if found is None:
        return ""
    target = found["target"]
    if target is None:
        return f"its last rule is {found['verdict']}"
    if target in seen:
        return ""
    inner = list_chain(nft, family, table, target)
    return _nft_end(nft, family, table, inner, seen | {target})


# iptables-legacy. Its tables are of another kind than nftables', and nft does not see them.


def _legacy_in_use() -> list[str]:
    """Asked of /proc, since the commands themselves would load the tables into the kernel."""
    found = []
    for command, names in _LEGACY.items():
        try:
            with open(f"/proc/thread-self/net/{names}", encoding="ascii") as file:
                if "filter" in file.read().split():
                    found.append(command)
        except OSError:
            continue  # the kernel has no such tables
    return found


def _legacy_command(command: str) -> str | None:
    """Its path; distributions without both kinds have the legacy one under the plain name."""
    path = find_program(command)
    if path is not None:
        return path
    plain = find_program(command.removesuffix("-legacy"))
    if plain is None:
        return None
    version = subprocess.run([plain, "--version"], capture_output=True, text=True, check=False)
    return None if "nf_tables" in version.stdout else plain


def _run_legacy(command: str, *arguments: str) -> list[str]:
    path = _legacy_command(command)
    if path is None:
        raise KernelError("run", command, 2, "the command is not installed")
    done = subprocess.run(
        [path, "-w", "10", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KernelError("run", f"{command} {' '.join(arguments)}", 22, done.stderr.strip())
    return done.stdout.splitlines()


def _legacy_rule(direction: str, bridge: str) -> list[str]:
    return [_DIRECTIONS[direction], bridge, "-m", "comment", "--comment", COMMENT, "-j", "ACCEPT"]


_LEGACY_OWN_RULE = re.compile(
    rf"-A \S+ -(i|o) (\S+) -m comment --comment \"?{COMMENT}\"? -j ACCEPT"
)
_LEGACY_LAST = re.compile(
    r'-A \S+(?: -m comment --comment (?:"[^"]*"|\S+))? -[jg] (?P<target>\S+)(?: --reject-with \S+)?'
)


def _legacy_chains() -> Iterator[ForwardChain]:
    for command in _legacy_in_use():
        if _legacy_command(command) is None:
            continue
        lines = _run_legacy(command, "-S", "FORWARD")
        policy = lines[0].split()[-1] if lines else ""
        cause = "policy drop" if policy == "DROP" else _legacy_end(command, lines, {"FORWARD"})
        ways = {"i": "iifname", "o": "oifname"}
        rules = (
            AcceptRule(ways[found[1]], found[2])
            for line in lines
            if (found := _LEGACY_OWN_RULE.fullmatch(line))
        )
        family = "ip" if command == "iptables-legacy" else "ip6"
        yield ForwardChain(command, family, "filter", "FORWARD", cause, tuple(rules))


def _legacy_end(command: str, lines: list[str], seen: set[str]) -> str:
    found = _LEGACY_LAST.fullmatch(lines[-1]) if lines else None
    if found is None:
        return ""
    target = found["target"]
    if target in ("DROP", "REJECT"):
        return f"its last rule is {target}"
    if target in seen or target in ("ACCEPT", "RETURN"):
        return ""
    try:
        inner = _run_legacy(command, "-S", target)
    except KernelError:
        return ""  # no chain, but a target such as LOG
    return _legacy_end(command, inner, seen | {target})
