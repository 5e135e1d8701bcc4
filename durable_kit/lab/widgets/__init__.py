"""Panels: something to turn and press in a notebook, in three layers.

a pure function       controls -> frozen result       tested without a widget
a pure renderer       result -> HTML                   tested without a kernel
a thin class          owns the controls                tested by clicking
"""
