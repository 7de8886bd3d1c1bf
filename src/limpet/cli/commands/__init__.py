"""Commands that ask the agent, the controller or the lab, and print the answer.

Add a command to the module of its noun (`node`, `path`), and a noun to the table of `cli.main`.
Must not import `linux` or `datapath`: what is more than asking and printing has a room beside this.
"""
