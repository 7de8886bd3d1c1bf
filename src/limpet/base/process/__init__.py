"""What long-running processes do alike, and the programs that they start.

Call `lifetime.run` for a process of ours, `programs` for one beside it that outlives the agent.
Imports nothing of Limpet but `base`; `signals` nothing at all, it is needed before anything else.
"""
