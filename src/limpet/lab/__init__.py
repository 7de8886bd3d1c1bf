"""An edge world on this machine, out of network namespaces: the demo, the tests' bed and the
benchmarks'.

Call `world.world` with a `topology`. Runs the real agent and controller, as processes. Must not
import `cli`, `web`, nor `agent` and `controller` but `agent.client` and `controller.admin.client`.
"""
