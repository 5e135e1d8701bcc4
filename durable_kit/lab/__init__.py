"""The laboratory: workloads, measurements and figures for the notebooks.

Nothing in the library imports this package. It may be slow to import and may ask for the extras
``[lab]``, ``[postgres]`` and ``[test]``; the library itself needs none of them.
"""
