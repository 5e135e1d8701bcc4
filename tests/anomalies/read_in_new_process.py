"""Tell the stories of some threads from a process that did not run them.

    python -m tests.anomalies.read_in_new_process URL graph=thread [graph=thread …]

prints one JSON object, from thread to story.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .real_graphs import build
from .telling import story


def main(url: str, *pairs: str) -> None:
    from durable_kit.delta_saver import DeltaSaver

    stories: dict[str, Any] = {}
    with DeltaSaver.open(url) as saver:
        for pair in pairs:
            graph, _, thread_id = pair.partition("=")
            stories[thread_id] = story(build(graph, saver), saver, thread_id)
    json.dump(stories, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
