"""Programs of Limpet for tests, each forked from an interpreter that has its modules already.

Loading a program's modules takes most of a second of a processor, and tests start thousands. What
is forked here is the real program in a process of its own: namespace, session, arguments,
environment, folder, input and outputs are what exec would have given it, and so is its exit code.
`Warmed` is a launcher of `limpet.lab.launch`; tests/conftest.py puts it there for all tests. What
cannot be had by a fork is started by exec: a command that does something before the program, a
variable that is read when the interpreter starts, descriptors that are inherited. A test that is
about the start itself says `launching_with(ByExec())`.
"""
