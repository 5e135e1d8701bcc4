"""How state is kept.

A checkpoint is a promise: after a crash, the state comes back as it was, or an error says what is
missing. The rooms below keep it in three steps. Values become bytes, and back, or are refused
(`codec`). Two states become one delta (`delta`), and a policy says when a whole snapshot is the
better buy (`snapshot_policy`). Records, each carrying the hash of its parent, go into one table
(`schema`, `database`) and are folded back into a state with every link checked. Nothing here knows
LangGraph: `durable_kit.delta_saver` is the only room that knows both.
"""
