"""What the agent says to the command line; both import it, and JSON output has the same keys.

A struct that would have more than a dozen fields is put together of nouns, so that a person's JSON
stays flat. `said` is the root of all; imports nothing of the agent.
"""
