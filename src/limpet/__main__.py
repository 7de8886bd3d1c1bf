"""`limpet`, and `python -m limpet`."""

from __future__ import annotations

import os
import sys

_HELP = frozenset({"-h", "--help"})


def main() -> int:
    """Exit code. Agent and controller start without the command line's libraries."""
    # Below: each imports only what its own process is to have in memory.
    arguments = sys.argv[1:]
    if arguments[:1] == ["agent"] and _names_settings_alone(arguments[1:]):
        # Which msgspec imports where it is there, for what typing has too: 0.3 MiB.
        _end_at_once()
        _do_without("rich", "typing_extensions")
        from limpet.agent.main import main as agent

        return agent(arguments[1:])
    if arguments[:1] == ["controller"] and _names_settings_alone(arguments[1:]):
        _end_at_once()
        _do_without("rich")
        from limpet.controller.main import main as controller

        return controller(arguments[1:])
    if arguments[:2] == ["dns", "serve"] and _names_settings_alone(arguments[2:]):
        _end_at_once()
        _do_without("rich")
        return _serve_names(arguments[2:])
    if arguments[:1] == ["__complete"]:
        _do_without("rich", "typing_extensions")
        from limpet.cli.completion.names import main as complete

        return complete(arguments[1:])
    if arguments[:2] == ["dns", "ready"] and not _HELP.intersection(arguments):
        from limpet.dns.handover.ready import main as ready

        return ready(arguments[2:])
    from limpet.cli.main import main as command_line

    return command_line(arguments)


def _names_settings_alone(arguments: list[str]) -> bool:
    """Else a person has typed it, and the command line explains itself, and what is wrong."""
    match arguments:
        case [] | ["--config", _]:
            return True
        case [one]:
            return one.startswith("--config=")
    return False


def _end_at_once() -> None:
    # Here: it loads asyncio, which takes longer than all of what completes a name.
    from limpet.base.process.signals import end_at_once

    end_at_once()


def _serve_names(arguments: list[str]) -> int:
    if "NOTIFY_SOCKET" not in os.environ:
        # No service manager keeps the sockets when the process ends.
        from limpet.dns.handover.keeper import keep

        return keep([sys.executable, *sys.orig_argv[1:]])
    # Only where no keeper runs it: the keeper stays small.
    from limpet.agent.names.main import main as names

    return names(arguments)


def _do_without(*modules: str) -> None:
    """structlog imports `rich` where it is there: 5 MiB of memory, for colours that no log has."""
    for name in modules:
        sys.modules[name] = None  # type: ignore[assignment]


if __name__ == "__main__":
    sys.exit(main())
