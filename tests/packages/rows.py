"""Rows of docs/files.md that packages fill, and nothing else."""

from __future__ import annotations

OF_DPKG = {
    *("/usr/bin/limpet", "/usr/lib/limpet", "/usr/lib/systemd/system/limpet-*.service"),
    *("/usr/share/*/*/*limpet*", "/usr/share/doc/limpet", "/usr/share/doc/limpet/*"),
}
"""Files of the package itself."""
KEPT = {"/var/backups/limpet-controller-*", "/var/backups/limpet-controller-*/controller.db"}
"""Where its removal leaves a cluster's database."""
PACKAGED = OF_DPKG | KEPT
