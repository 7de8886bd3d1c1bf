"""flannel's chains of iptables: saved, taken away, put back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from limpet.base.errors import LimpetError

_CHAINS = "FLANNEL-"
_PROGRAMS = ("iptables", "ip6tables")


def save_rules() -> dict[str, str]:
    """What `iptables-restore --noflush` brings back, by the name of the program; empty where
    flannel has none, or the programs are not on this machine. Raises: LimpetError."""
    found = {}
    for program in _PROGRAMS:
        if shutil.which(f"{program}-save") is not None:
            text = _only_flannel(_run(f"{program}-save", ""))
            if text:
                found[program] = text
    return found


def _only_flannel(saved: str) -> str:
    lines: list[str] = []
    for table, chains, rules in _tables(saved):
        if chains or rules:
            lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains), *rules, "COMMIT"]
    return "".join(f"{line}\n" for line in lines)


def _tables(saved: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Name, chains and rules of flannel's in each table."""
    table, chains, rules = "", list[str](), list[str]()
    for line in saved.splitlines():
        if line.startswith("*"):
            table, chains, rules = line[1:], [], []
        elif line.startswith(f":{_CHAINS}"):
            chains.append(line[1:].split()[0])
        elif line.startswith("-A ") and _CHAINS in line:
            rules.append(line)
        elif line == "COMMIT":
            yield table, chains, rules


def remove_rules(saved: dict[str, str]) -> None:
    """Those that were saved. Raises: LimpetError."""
    for program, text in saved.items():
        if shutil.which(f"{program}-restore") is not None:
            _run(f"{program}-restore", _removal(text), "--noflush")


def _removal(saved: str) -> str:
    lines = []
    for table, chains, rules in _tables(saved):
        lines.append(f"*{table}")
        # What leads into a chain goes before the chain does.
        into = [rule for rule in rules if not rule.startswith(f"-A {_CHAINS}")]
        lines += [f"-D{rule[2:]}" for rule in into]
        lines += [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
        lines.append("COMMIT")
    return "".join(f"{line}\n" for line in lines)


def restore_rules(saved: dict[str, str]) -> None:
    """Those that are there already stay as they are. Raises: LimpetError."""
    there = save_rules()
    for program, text in saved.items():
        if shutil.which(f"{program}-restore") is not None:
            _run(f"{program}-restore", _restoration(text, there.get(program, "")), "--noflush")


def _restoration(saved: str, there: str) -> str:
    """A chain is made anew with its rules; what leads into it is added where it is not there."""
    present = {table: set(rules) for table, _, rules in _tables(there)}
    lines = []
    for table, chains, rules in _tables(saved):
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains)]
        lines += [
            rule
            for rule in rules
            if rule.startswith(f"-A {_CHAINS}") or rule not in present.get(table, ())
        ]
        lines.append("COMMIT")
    return "".join(f"{line}\n" for line in lines)


def _run(program: str, stdin: str, *words: str) -> str:
    done = subprocess.run(
        [program, *words], input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LimpetError(f"run {program}: {done.stderr.strip()[-500:]}")
    return done.stdout
