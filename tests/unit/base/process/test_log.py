"""What a real process logs of what others wrote."""

from __future__ import annotations

import subprocess
import sys

from limpet.base.process.log_limits import LogLimits

_FORGED = "web\ntimestamp=2020-01-01 level=info event=forged\x1b[2J\u202e"

_PROGRAM = f"""
import logging, threading, structlog
from limpet.base.process.log import configure_log

configure_log("info")
log = structlog.get_logger("here")
forged = {_FORGED!r}
log.info("a name", pod=forged, among=[forged], error=ValueError(forged), **{{"k ey\\n": 1}})
log.info("a long one", words="x" * 1_000_000, number=10**5000)
try:
    raise ValueError(forged * 100_000)
except ValueError as error:
    log.error("failed", exc_info=error)
for _ in range(5000):
    log.info("refused", by_others=True, error="no")
for _ in range(3000):
    log.info("busy")
logging.getLogger("aiohttp.server").error("a library: %s", forged)
def crash():
    raise ValueError(forged)
thread = threading.Thread(target=crash, name=forged)
thread.start()
thread.join()
raise RuntimeError(forged)
"""


def test_a_log_has_a_line_for_each_thing_and_none_that_others_wrote() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()

    assert [line for line in lines if not line.startswith("timestamp=2")] == []
    assert not any("event=forged" in line.split(" pod=")[0].split("\\n")[0] for line in lines)
    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr
    assert max(map(len, lines)) < 100_000
    assert sum("event=refused" in line for line in lines) < 30
    assert sum("event=busy" in line for line in lines) < 1200
    (library,) = (line for line in lines if "a library says" in line)
    assert "aiohttp.server" in library
    assert any("a thread was ended" in line for line in lines)
    assert "RuntimeError" in lines[-1]
    assert done.returncode == 1


def test_what_was_left_out_is_told_by_the_next_of_its_kind() -> None:
    limits = LogLimits()
    told = [limits.take("refused", 0.0, by_others=True) for _ in range(100)]
    assert told == [0] * 20 + [None] * 80
    assert limits.take("refused", 5.0, by_others=True) == 80
    assert limits.take("refused", 5.0, by_others=True) is None


def test_what_was_left_out_is_told_too_when_no_more_of_its_kind_come() -> None:
    limits = LogLimits()
    for _ in range(100):
        limits.take("refused", 0.0, by_others=True)
    assert limits.take("another", 1.0, by_others=False) == 0
    assert limits.take_silent(1.0) == {}
    assert limits.take_silent(6.0) == {"refused": 80}
    assert limits.take_silent(60.0) == {}


def test_what_others_cause_leaves_room_for_the_same_words_of_our_own() -> None:
    limits = LogLimits()
    for _ in range(100):
        limits.take("failed", 0.0, by_others=True)
    assert limits.take("failed", 0.0, by_others=False) == 0


def test_one_member_uses_up_no_lines_about_another() -> None:
    limits = LogLimits()
    for _ in range(100):
        limits.take("claims", 0.0, by_others=True, who="one")
    assert limits.take("claims", 0.0, by_others=True, who="other") == 0
    assert limits.take_silent(6.0) == {"claims": 80}


def test_kinds_without_end_take_memory_with_an_end() -> None:
    limits = LogLimits()
    for number in range(20_000):
        limits.take(f"kind {number}", 0.0, by_others=True)
    assert len(limits.take_silent(1e9)) <= 1000
