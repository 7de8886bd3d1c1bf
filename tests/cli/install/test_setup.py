"""`scripts/setup` in a checkout that was copied, with the virtual environment that came along."""

from __future__ import annotations

import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
PARTS = (
    *("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"),
    *("bpf", "requirements", "scripts", "shim", "src"),
)
WHERE = (
    "import limpet, limpet.cni.shim_binary as binary; print(limpet.__file__, binary.shim_path())"
)


def imported_by(checkout: Path) -> list[str]:
    """Where the checkout's own Python finds Limpet, and its shim."""
    python = checkout / ".venv" / "bin" / "python"
    return subprocess.check_output([python, "-P", "-c", WHERE], text=True, cwd="/").split()


def copy_of(checkout: Path, target: Path) -> None:
    target.mkdir()
    for part in PARTS:
        subprocess.run(["cp", "-a", checkout / part, target], check=True)
    for folder, option in ((".venv", "-a"), (".venv/lib", "-al")):
        (target / folder).mkdir()
        for path in (checkout / folder).iterdir():
            if path.name != "lib":
                subprocess.run(["cp", option, path, target / folder], check=True)


def test_a_copied_checkout_imports_itself_after_setup_and_leaves_the_other_alone(
    tmp_path: Path,
) -> None:
    ours = imported_by(CHECKOUT)
    copy = tmp_path / "copy"
    copy_of(CHECKOUT, copy)
    assert imported_by(copy)[0] == ours[0]  # the other's: this is what setup has to mend

    done = subprocess.run([copy / "scripts" / "setup"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert f"copied or moved from {CHECKOUT}" in done.stderr
    assert all(Path(path).is_relative_to(copy) for path in imported_by(copy))
    program = (copy / ".venv" / "bin" / "pip").read_text()
    assert program.startswith(f"#!{copy}/.venv/bin/python")
    assert imported_by(CHECKOUT) == ours
    again = subprocess.run([copy / "scripts" / "setup"], capture_output=True, text=True, check=True)
    assert again.stderr == ""
