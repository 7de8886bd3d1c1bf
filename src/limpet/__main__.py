"""`limpet`, and `python -m limpet`."""

from __future__ import annotations

import sys


def main() -> int:
    """Exit code. The agent starts without the command line's libraries: a node waits for it."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["agent"]:
        from limpet.agent.main import main as agent

        return agent(arguments[1:])
    from limpet.ctl.main import main as command_line

    return command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())
