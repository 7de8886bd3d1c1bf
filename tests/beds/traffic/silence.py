"""How long a pod gets no answer from another while things happen to the network between them."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time

from limpet.lab.command import LabError
from limpet.lab.world.pod import LabPod

_EVERY_S = 0.02
_LOOK_EVERY_S = 0.01


class Silence:
    """Within the block one pod pings another fifty times a second; times are of the wall clock."""

    def __init__(self, source: LabPod, target: LabPod, *, within_s: float) -> None:
        """`within_s`: how long is waited for an answer."""
        self._within_s = within_s
        self._names = f"{source.name} to {target.name}"
        address = next(each.ip for each in target.addresses if each.version == 4)
        self._command = (
            *("nsenter", f"--net={source.netns_path}", "ping", "-n", "-D"),
            *("-i", str(_EVERY_S), str(address)),
        )
        self._answered_s: list[float] = []

    def __enter__(self) -> Silence:
        """From the first answer on. Raises: LabError."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.wait()
        except LabError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "bytes from" in line:  # `[1700000000.123456] 64 bytes from …`
                self._answered_s.append(float(line[1 : line.index("]")]))

    def wait(self) -> None:
        """Until something that is asked from now on was answered. Raises: LabError."""
        now_s, end_s = time.time(), time.monotonic() + self._within_s
        while not any(each > now_s for each in self._answered_s[-3:]):
            if time.monotonic() > end_s:
                raise LabError(f"wait for answers, {self._names}: none in {self._within_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def longest_s(self, since_s: float) -> float:
        """The longest time without an answer from then on until now."""
        times = [since_s, *(each for each in list(self._answered_s) if each > since_s), time.time()]
        return max(after - before for before, after in itertools.pairwise(times))
