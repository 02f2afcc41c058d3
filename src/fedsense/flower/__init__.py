"""The same methods on a fleet: an adapter to Flower (https://flower.ai), extra ``[fleet]``.

The engine that runs on one machine runs on the server, too; only its executor is another one. A call, which holds
Bundles and plain numbers, goes to the node that has the client's recordings, and its answer comes back:

    server   Engine → Fleet (executor) → Flower's Grid ─┐
                                                        │ one message a node and step
    node     Site ← Node ← ClientApp  ←─────────────────┘

What a client keeps between rounds stays on its node (:mod:`fedsense.flower.keep`). No method knows any of this.
"""
