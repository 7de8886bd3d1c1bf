"""What changed when, in a small file that outlives its process: nodes and controllers keep one.

Call `recorder.Recorder` to record and to ask, `file.read_all` where nobody runs. What is recorded
is for the agent and the controller to say. Imports nothing of Limpet but `base`, and `picture` for
what an entry is.
"""
