"""What tells a node's boots apart, on a kernel that nodes share."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import ctypes
from limpet.cluster.identity import boot_id
unshare = ctypes.CDLL(None, use_errno=True).unshare
CLONE_NEWNET = 0x40000000
for _ in range(50):
    assert unshare(CLONE_NEWNET) == 0
    assert boot_id() == boot_id()
    print(boot_id())
"""


def test_a_node_that_boots_on_a_shared_kernel_never_has_the_boot_id_of_one_that_is_gone() -> None:
    """Or the controller takes it for a clone. The kernel gives an inode's number out again."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
    )

    boot_ids = done.stdout.split()
    assert len(boot_ids) == 50
    assert len(set(boot_ids)) == 50
