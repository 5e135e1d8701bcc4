"""The commands of ``python -m durable_kit``, a module each.

A command module has ``add_parser(commands)``, which describes it, and a function that runs it and
returns the exit code. Nothing heavy is imported until a command runs, so ``--help`` is quick.

The exit codes are the same everywhere: 0 the answer is good, 1 the answer is bad (a check failed,
a record is damaged), 2 the question could not be asked (a bad URL, no such thread), 130
interrupted.
"""
