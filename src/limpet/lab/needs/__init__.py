"""What a topology needs of this machine, found out before anything is built.

Call `check.check`. `plan` says what a topology needs, and knows nothing of this machine. Must not
import `world.world` or `kube.world`: neither knows how a world is built.
"""
