"""Every table of the kit.

Checkpoints are kept as a log, one log for each pair of thread and namespace:

    checkpoint_heads     one row a log: whose it is, where it ends, what it must add up to
    checkpoints          one row a checkpoint: a snapshot, or a delta on its parent
    checkpoint_writes    one row for each call of put_writes: what a task wrote before the
                         super-step's checkpoint existed
    checkpoint_packs     older rows of checkpoint_writes, many in one row
    checkpoint_originals what a migrated checkpoint was before; see versions/rewrite
    graph_shapes         what graphs looked like, by fingerprint: a row for each that was ever run
    quarantine           rows that failed their checks, moved here by `recover`; never read back

Effects leave the process, and what is known of them is kept apart from checkpoints:

    tool_call_receipts   one row for each idempotency key: the intent, then the receipt
    outbox               one row a message, written in the transaction of what it tells about
    inbox                one row a message that a consumer has taken, so that it takes it once
    run_events           one row a fact of a run, only ever added

Why a head? A log whose newest record has gone looks exactly like a log that never had it. The
head counts the records and keeps the XOR of their checksums, so a missing record is noticed
wherever it stood, and it has a checksum of its own. Counting rows and adding up their sequences
needs the index only, so that every listing can afford it. The head of the root namespace also
vouches for the heads of the thread's other namespaces, and exists from their first on.

Why `thread_key`? Every row and every index entry names its log. Eight bytes of a hash of thread
and namespace take the place of two texts, need no look-up before the first write, and still find
the rows when the head is lost.

Migrations are numbered and run inside one transaction under the database's own lock (SQLite's
write lock, an advisory lock on PostgreSQL): eight processes that start on an empty database make
one set of tables, and one that dies half way leaves none. Both databases roll back CREATE TABLE.
"""

from __future__ import annotations

from durable_kit.errors import SchemaMismatch
from durable_kit.storage.database import Database, Tx

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE checkpoint_heads (
            thread_key      BIGINT NOT NULL PRIMARY KEY,  -- first 8 bytes of a hash of the next two
            thread_id       TEXT   NOT NULL,   -- LangGraph's thread (NUL and backslash escaped)
            namespace       TEXT   NOT NULL,   -- LangGraph's checkpoint_ns, '' for the root graph
            next_sequence   BIGINT NOT NULL,   -- the number that the next record gets
            latest_sequence BIGINT NOT NULL,   -- the checkpoint stored last; 0 while there is none
            records         BIGINT NOT NULL,   -- how many rows of checkpoints belong to this log
            sequence_sum    BIGINT NOT NULL,   -- the sum of their sequences
            namespaces      BIGINT NOT NULL,   -- the root's only: XOR of the thread's other keys
            digest          {blob} NOT NULL,   -- XOR of the checksums of those rows, 32 bytes
            checksum        {blob} NOT NULL    -- sha256 of this row
        )
        """,
        """
        CREATE INDEX checkpoint_heads_by_thread ON checkpoint_heads (thread_id)
        """,
        """
        CREATE TABLE checkpoints (
            thread_key      BIGINT  NOT NULL,  -- the log this record belongs to
            sequence        BIGINT  NOT NULL,  -- order of writing within the log; never reused
            checkpoint_id   {blob}  NOT NULL,  -- LangGraph's id, packed (record.pack_id)
            parent_id       {blob},            -- the parent's id; NULL in a delta (see its parent)
            parent_sequence BIGINT,            -- the record a delta changes; NULL in a snapshot
            kind            TEXT    NOT NULL,  -- snapshot, delta, or awaited (writes came first)
            depth           INTEGER NOT NULL,  -- deltas above the snapshot, itself included
            state_version   INTEGER NOT NULL,  -- shape of the state, as its owner counts
            created_at_us   BIGINT  NOT NULL,  -- when written, UTC; never used for order
            run_key         BIGINT,            -- first 8 bytes of a hash of the run id, if any
            writes_count    INTEGER NOT NULL,  -- how many rows checkpoint_writes has of it
            metadata        {blob}  NOT NULL,  -- encoded (and sealed) metadata
            body            {blob}  NOT NULL,  -- encoded (and sealed) snapshot or delta
            checksum        {blob}  NOT NULL,  -- sha256 over the row and the parent's checksum
            PRIMARY KEY (thread_key, sequence)
        )
        """,
        """
        CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread_key, checkpoint_id)
        """,
        """
        CREATE INDEX checkpoints_by_run ON checkpoints (run_key) WHERE run_key IS NOT NULL
        """,
        """
        CREATE TABLE checkpoint_writes (
            thread_key BIGINT  NOT NULL,  -- the log
            sequence   BIGINT  NOT NULL,  -- the checkpoint these writes start from
            ordinal    INTEGER NOT NULL,  -- 0, 1, 2 … in order of arrival
            task_id    {blob}  NOT NULL,  -- LangGraph's task id, packed
            task_path  {blob}  NOT NULL,  -- LangGraph's task path, packed; gives the order
            body       {blob}  NOT NULL,  -- encoded (and sealed) writes
            checksum   {blob}  NOT NULL,  -- sha256 over the row and the previous one's
            PRIMARY KEY (thread_key, sequence, ordinal)
        )
        """,
        """
        CREATE TABLE checkpoint_packs (
            thread_key     BIGINT NOT NULL,  -- the log
            pack           BIGINT NOT NULL,  -- sequence of the snapshot it was made with
            first_sequence BIGINT NOT NULL,  -- the oldest checkpoint whose writes are in it
            last_sequence  BIGINT NOT NULL,  -- the newest
            body           {blob} NOT NULL,  -- encoded (and sealed) writes, see packs.py
            checksum       {blob} NOT NULL,  -- sha256 over all of these
            PRIMARY KEY (thread_key, pack)
        )
        """,
        """
        CREATE TABLE checkpoint_originals (
            thread_key     BIGINT  NOT NULL,  -- the log
            checkpoint_id  {blob}  NOT NULL,  -- of the checkpoint that was migrated, packed
            replaced_at_us BIGINT  NOT NULL,
            replaced_by    {blob}  NOT NULL,  -- the checksum of the record that took its place
            writes_count   INTEGER NOT NULL,  -- and how many write records that one had
            body           {blob}  NOT NULL,  -- state_version, metadata, values, writes (sealed)
            checksum       {blob}  NOT NULL,  -- sha256 of the body
            PRIMARY KEY (thread_key, checkpoint_id)
        )
        """,
        """
        CREATE TABLE graph_shapes (
            fingerprint TEXT NOT NULL PRIMARY KEY,  -- of the shape; checkpoints have it as metadata
            shape       TEXT NOT NULL               -- nodes, edges, joins and channels, JSON
        )
        """,
        """
        CREATE TABLE quarantine (
            thread_id   TEXT   NOT NULL,  -- the thread that was recovered
            source      TEXT   NOT NULL,  -- the table it was taken from
            sequence    BIGINT,           -- its sequence there, if it has a readable one
            reason      TEXT   NOT NULL,  -- what was wrong with it
            moved_at_us BIGINT NOT NULL,
            columns     {blob} NOT NULL   -- the row as it was found, by column, msgpack
        )
        """,
    ),
    (
        """
        CREATE TABLE tool_call_receipts (
            scope            TEXT    NOT NULL,  -- whose keys these are (a tenant, or '')
            request_id       TEXT    NOT NULL,  -- the idempotency key (NUL, backslash escaped)
            tool_name        TEXT    NOT NULL,  -- what the effect is sent to
            request_hash     TEXT    NOT NULL,  -- request_fingerprint of the next
            request          {blob}  NOT NULL,  -- the request, encoded: it is sent on every attempt
            status           TEXT    NOT NULL,  -- requested, started, succeeded, failed, unknown
            attempt          INTEGER NOT NULL,  -- how often it may have been sent
            owner            TEXT    NOT NULL,  -- who took the last attempt, '' if nobody
            claim_until_us   BIGINT  NOT NULL,  -- that owner sends nothing after this moment
            response         {blob},            -- the response, or a refusal's details, encoded
            failure          TEXT,              -- of a failed one: not sent, or refused
            detail           {blob}  NOT NULL,  -- why failed or unknown, how settled; UTF-8
            threads          TEXT    NOT NULL,  -- JSON list of the threads that rely on the receipt
            requested_at_us  BIGINT  NOT NULL,  -- when the intent was committed
            first_sent_at_us BIGINT,            -- when the provider can have seen the key first
            started_at_us    BIGINT,            -- when the last attempt was taken
            finished_at_us   BIGINT,            -- when the receipt was written
            PRIMARY KEY (scope, request_id)
        )
        """,
        """
        CREATE INDEX tool_call_receipts_unsettled
            ON tool_call_receipts (tool_name)
         WHERE status IN ('started', 'unknown')
        """,
    ),
    (
        """
        CREATE TABLE outbox (
            position         {counter},        -- order of writing; counts within one key only
            message_id       TEXT    NOT NULL UNIQUE,  -- the same in every attempt
            topic            TEXT    NOT NULL, -- what kind of message it is
            ordering_key     TEXT    NOT NULL, -- messages with one key are sent in their order
            body             {blob}  NOT NULL, -- the encoded message
            status           TEXT    NOT NULL, -- waiting, delivered, dead
            waiting_since_us BIGINT  NOT NULL, -- when it was written, or sent back by `redrive`
            due_at_us        BIGINT  NOT NULL, -- nobody touches it before: a claim, or a backoff
            owner            TEXT,             -- the relay whose claim it is or was
            claims           BIGINT  NOT NULL, -- how often it was claimed, ever: the claim's token
            attempts         INTEGER NOT NULL, -- those of them that count toward the limit
            last_error       TEXT,             -- why the last attempt failed
            ended_at_us      BIGINT            -- when it was delivered, or declared dead
        )
        """,
        """
        CREATE INDEX outbox_due ON outbox (due_at_us, position) WHERE status = 'waiting'
        """,
        """
        CREATE INDEX outbox_by_key ON outbox (ordering_key, position) WHERE status = 'waiting'
        """,
        """
        CREATE TABLE inbox (
            consumer    TEXT   NOT NULL,  -- who takes it; two consumers take it once each
            message_id  TEXT   NOT NULL,
            taken_at_us BIGINT NOT NULL,
            PRIMARY KEY (consumer, message_id)
        )
        """,
        """
        CREATE TABLE run_events (
            run_id         TEXT   NOT NULL,  -- the run that it is a fact of
            version        BIGINT NOT NULL,  -- 1, 2, 3 … within the run, without gaps
            kind           TEXT   NOT NULL,  -- the name of the fact, ToolRequested
            body           {blob} NOT NULL,  -- its encoded fields
            recorded_at_us BIGINT NOT NULL,  -- when it was written down, UTC; never used for order
            checksum       {blob} NOT NULL,  -- sha256 over the row and the checksum before it
            PRIMARY KEY (run_id, version)
        )
        """,
    ),
)

_TYPES = {
    "sqlite": {"blob": "BLOB", "counter": "INTEGER PRIMARY KEY"},
    "postgresql": {"blob": "BYTEA", "counter": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"},
}

_LOCK = 0x6475_7261_626C_656B  # "durablek": the advisory lock that migrations take on PostgreSQL


def migrate(database: Database) -> None:
    """Bring the tables up to date. Safe at any moment, from any number of processes.

    Raises `SchemaMismatch` if the database was written by newer code, or says a version that its
    tables contradict.
    """
    with database.read() as tx:
        version = _version(tx)
    if version == len(MIGRATIONS):
        return
    try:
        with database.write() as tx:
            if not tx.is_sqlite:
                tx.execute("SELECT pg_advisory_xact_lock(:lock)", lock=_LOCK)
            version = _version(tx)  # another process may have been quicker
            if version > len(MIGRATIONS):
                raise SchemaMismatch(
                    f"{database.url!r} has schema version {version}; this code knows "
                    f"{len(MIGRATIONS)}. Update durable_kit, or open another database."
                )
            if version == 0:
                tx.execute("CREATE TABLE kit_schema (version INTEGER NOT NULL)")
                tx.execute("INSERT INTO kit_schema (version) VALUES (0)")
            types = _TYPES["sqlite" if tx.is_sqlite else "postgresql"]
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    tx.execute(statement.format(**types))
            tx.execute("UPDATE kit_schema SET version = :version", version=len(MIGRATIONS))
    except Exception as error:
        if "already exists" not in str(error):
            raise
        raise SchemaMismatch(
            f"{database.url!r}: the tables of the kit exist, but kit_schema does not say so "
            f"({error}). Restore the row of kit_schema, or open another database."
        ) from error


def _version(tx: Tx) -> int:
    """The schema version of this database; 0 if the kit has never been here."""
    if tx.is_sqlite:
        known = tx.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'kit_schema'")
    else:
        known = tx.row(
            """
            SELECT 1
              FROM pg_tables
             WHERE schemaname = ANY(current_schemas(false)) AND tablename = 'kit_schema'
            """
        )
    if known is None:
        return 0
    found = tx.rows("SELECT version FROM kit_schema")
    if len(found) != 1 or not isinstance(found[0][0], int) or found[0][0] < 1:
        raise SchemaMismatch(
            f"kit_schema must hold one row with the schema version; it holds {found}. "
            "Somebody changed it by hand: put the right version back, or open another database."
        )
    return found[0][0]
