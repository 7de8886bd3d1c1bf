"""Commands that ask the agent, the controller or the lab, and print the answer.

One module for each noun.
"""
