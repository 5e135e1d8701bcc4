"""Breaking things on purpose: real processes, killed at a named point, and what is left of them.

experiment   what is to be run and killed: Experiment, AtPoint, AfterSteps, AfterTime
trial        run it, kill it, resume it, count: run_trial, run_trials -> Trial
points       crash points for any compiled graph and any saver
witness      what was executed, told by a file that no checkpointer touches
worker       the process that is killed, from its own side
fork_server  processes that begin at once
child        a process that can be killed at a named point, and cannot be left behind
"""
