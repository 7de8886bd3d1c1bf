"""What exit codes mean; the documentation, manual pages and a test are made of this."""

from __future__ import annotations

EVERYWHERE: dict[int | str, str] = {
    0: "It worked, and nothing is wrong.",
    1: "It did not work, or something is wrong.",
    2: "The command line is wrong; nothing was done.",
    130: "Interrupted (Ctrl-C).",
}
ONE = {
    "status": "No agent answers, or pods cannot be started here now.",
    "path": "There is no way, the other node does not answer, policies allow no connection, or the "
    "Service refuses that port.",
    "ipam check": "There are leaks or damage, or no agent could say whether there are.",
    "ipam list": "There is no such network.",
    "ipam release": "Nothing is kept for it, or a container holds it.",
    "doctor": "There is a finding of level error.",
    "connectivity test": "Something was not reached, or no test came about.",
    "connectivity pod": "The test could not be made.",
    "dns query": "The answer is an error, such as NXDOMAIN.",
    "dns ready": "Another process answers names, or none.",
    "dns serve": "It could not start.",
    "agent": "It could not start.",
    "controller": "It could not start.",
    "controller recovery": "The controller waits for nodes after a restore.",
    "token remove": "A token had let a node in before, or there is none of that id.",
    "install": "Something stands in the way, or is not whole; the last line says what.",
    "uninstall": "Pods are attached, or something could not be taken back.",
    "controller uninstall": "Something could not be taken back.",
    "lab demo": "This machine lacks something, or something did not come out as it should.",
    "lab up": "This machine lacks something that the topology needs, or the world did not come up.",
    "lab status": "With --ping: somebody was not reached.",
}
"""Where 1 means something of its own, by command."""
OTHERS = {
    "lab shell": "The exit code of the command that was run, or of the shell.",
}
"""Commands whose exit code is another program's."""


def exit_codes_of(words: str) -> dict[int | str, str]:
    """Meanings by code, of that command; `words`: without `limpet`."""
    if words in OTHERS:
        return {"any": OTHERS[words], 2: EVERYWHERE[2]}
    return {**EVERYWHERE, 1: ONE.get(words, EVERYWHERE[1])}
