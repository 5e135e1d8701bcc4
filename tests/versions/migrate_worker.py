"""A process that migrates a database, to be killed while it does.

python -m tests.versions.migrate_worker URL
"""

from __future__ import annotations

import sys
from decimal import Decimal

from durable_kit.crash.child import stay_no_longer_than_the_parent


def cents(euros: str) -> int:
    return round(Decimal(euros) * 100)


def main() -> int:
    stay_no_longer_than_the_parent()
    from durable_kit import DeltaSaver
    from durable_kit.versions.rewrite import migrate

    with DeltaSaver.open(sys.argv[1], migrations=migrations()) as saver:
        migrate(saver, dry_run=False)
    print("finished", flush=True)
    return 0


def migrations():  # type: ignore[no-untyped-def]
    from durable_kit.versions.migration import Migrations, Step

    return Migrations(
        Step(to=2, says="totals in cents", rename={"total": "cents"}, convert={"cents": cents}),
        Step(to=3, says="a better word", rename_nodes={"review": "approve"}),
    )


def __getattr__(name: str) -> object:
    if name == "MIGRATIONS":
        return migrations()
    raise AttributeError(name)


if __name__ == "__main__":
    sys.exit(main())
