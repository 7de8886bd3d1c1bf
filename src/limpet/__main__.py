"""`limpet`: the agent at once, everything else through the command line of `ctl`."""

from __future__ import annotations

import sys


def main() -> int:
    if sys.argv[1:2] == ["agent"]:
        # Without the libraries of the command line: the agent has to be ready soon.
        from limpet.agent.main import main as agent

        return agent(sys.argv[2:])
    from limpet.ctl.main import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
