"""Memory and processor time of processes, also of one that lives for a millisecond."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time

from bench.nodes.launch import Command

_PTRACE_CONT, _PTRACE_DETACH, _PTRACE_SEIZE = 7, 17, 0x4206
_PTRACE_O_TRACEEXIT = 0x40
_STOPPED_AT_EXIT = signal.SIGTRAP | 6 << 8
_LOOK_EACH_S, _SETTLED, _SETTLING_S = 0.1, 5, 20.0
_NOTHING_MB = 0.25

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def resident_kib(pid: int) -> int:
    """Resident memory of a process now, in KiB."""
    return _field_kib(pid, "status", "VmRSS")


def resident_mb(pid: int) -> float:
    """Resident memory of a process now, in MB of 10^6 bytes."""
    return resident_kib(pid) * 1024 / 1e6


def own_mb(pid: int) -> float:
    """What a process has resident now beside pages of files, which others have too where they run
    the same programs; in MB of 10^6 bytes."""
    return _field_kib(pid, "status", "RssAnon") * 1024 / 1e6


def peak_resident_mb(pid: int) -> float:
    """The most resident memory that a process has had so far, in MB of 10^6 bytes."""
    return _field_kib(pid, "status", "VmHWM") * 1024 / 1e6


def kernel_mb() -> float:
    """Memory of the kernel now, in MB of 10^6 bytes, but for what has a cache of its kind (files,
    connections): objects, tables and counters, in which policies are too.

    It is of the whole machine: a memory cgroup is told of what nftables and eBPF keep, and not of
    what ipset keeps. Objects are counted one by one, since new ones fill pages that are partly
    empty first; what is larger than two pages is in the sum of all slabs only.
    """
    with open("/proc/meminfo") as lines:
        kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    objects = slabs = 0
    with open("/proc/slabinfo") as lines:
        for fields in map(str.split, list(lines)[2:]):
            name, (active, _, size, _, pages) = fields[0], map(int, fields[1:6])
            slabs += int(fields[-2]) * pages * resource.getpagesize()
            if name.startswith("kmalloc-") and not name.startswith("kmalloc-rcl-"):
                objects += active * size
    others = sum(kib[name] for name in ("Slab", "VmallocUsed", "Percpu")) * 1024 - slabs
    return (objects + others) / 1e6


def settled_kernel_mb() -> float:
    """Memory of the kernel once what was freed a moment ago no longer counts: its workers give much
    of that back later."""
    least = kernel_mb()
    unchanged = 0
    end_s = time.monotonic() + _SETTLING_S
    while unchanged < _SETTLED and time.monotonic() < end_s:
        time.sleep(_LOOK_EACH_S)
        now = kernel_mb()
        unchanged = unchanged + 1 if now > least - _NOTHING_MB else 0
        least = min(least, now)
    return kernel_mb()


def cpu_s(pid: int) -> float:
    """Processor time of all its threads so far, to the nanosecond.

    Source: clock_getcpuclockid(3); the number is made as glibc makes it.
    """
    return time.clock_gettime(~pid << 3 | 2)


def waits(pid: int) -> int:
    """How often its threads that live now have waited for something, so far."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status") as lines:
            total += sum(int(each.split()[1]) for each in lines if each.startswith("voluntary_"))
    return total


def _field_kib(pid: int, file: str, field: str) -> int:
    with open(f"/proc/{pid}/{file}") as lines:
        for line in lines:
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/{file} has no {field}")


def peak_resident_kib(command: Command) -> tuple[int, bytes]:
    """Peak resident memory of the whole run in KiB, and what it printed.

    The process is stopped at its exit, when its memory is still there to be read; rusage would
    count the memory of the process that started it too. The command must read its stdin.
    """
    stdin, to_stdin = os.pipe()
    from_stdout, stdout = os.pipe()
    pid = os.posix_spawn(
        command.program,
        [command.program, *command.arguments],
        dict(command.environment),
        file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)],
    )
    os.close(stdin)
    os.close(stdout)
    # Until its stdin comes it cannot have ended.
    _ptrace(_PTRACE_SEIZE, pid, _PTRACE_O_TRACEEXIT)
    os.write(to_stdin, command.stdin)
    os.close(to_stdin)
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            raise RuntimeError(f"{command.program} ended unseen, status {status}")
        if status >> 8 == _STOPPED_AT_EXIT:
            break
        stopped_by = os.WSTOPSIG(status)
        _ptrace(_PTRACE_CONT, pid, 0 if stopped_by == signal.SIGTRAP else stopped_by)
    # The kernel counts VmHWM per CPU and up to 256 KiB late; the sum over the mappings is exact.
    peak = max(_field_kib(pid, "status", "VmHWM"), _field_kib(pid, "smaps_rollup", "Rss"))
    _ptrace(_PTRACE_DETACH, pid, 0)
    os.waitpid(pid, 0)
    with open(from_stdout, "rb") as said:
        return peak, said.read()


def _ptrace(request: int, pid: int, data: int) -> None:
    if _libc.ptrace(request, pid, None, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request} on {pid}: {os.strerror(number)}")
