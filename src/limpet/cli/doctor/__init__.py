"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at.

Call `doctor.diagnose`, or `examine.examine` for what install looks at too. Each module looks at one
thing: `examine_…` asks the machine, `…_findings` judges what it is given; `findings` gathers and
prints. It changes nothing. Must not import `cli.commands` but `commands.status`, for its words.
"""
