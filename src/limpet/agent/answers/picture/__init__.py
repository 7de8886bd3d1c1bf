"""What a node knows of the network, as `limpet.picture` has it: also with no cloud there.

Call `making.PictureAnswers`; `looking` reads what there is to be seen. `detail`, `nodes`,
`reporting`, `ways` and `workloads` are pure. In memory only where somebody looks. Must not import
`answers.verbs`, which asks it.
"""
