"""Old work, new code.

An agent that waits for an answer waits in a database, and code is deployed meanwhile. Two questions
come up when it goes on, and they have nothing to do with each other:

    may this thread go on by these rules?    business: `flow_router`, a version per thread
    can this code read that state?           technical: `migration`, a version per record

and one before both: is this still the graph that the thread stopped in? (`graph_fingerprint`)
"""
