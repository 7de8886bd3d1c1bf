"""`limpet netcheck`: what gets out of this machine, found out before anything is installed on it.

Call `check.check`; `report` says what it comes to. Changes nothing, and needs no agent. Must not
import `agent`, `controller` or `cli.install`.
"""
