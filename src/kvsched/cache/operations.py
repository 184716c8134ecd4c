"""What the live kernel can do, what it answers, and where it writes what it did."""

from __future__ import annotations

ACQUIRE = 0
"""Look a chain up, hold it, and store what is missing."""
GROW = 1
"""The same below a node that the request holds, with blocks that it has filled."""
TAKE = 2
"""Take physical blocks that hold no node."""
EVICT = 3
"""Let so many blocks leave."""
EXPIRE = 4
"""Let what has outlived its lifetime leave."""
PROBE = 5
"""Look a chain up, and say what ACQUIRE would find; nothing changes."""
RELEASE = 6
"""End a request's hold; what it did not compute is dropped."""
UNHOLD = 7
"""End a hold of a chain that was not used further."""
UNPIN = 8
"""End a hold that PIN began."""
SHARE = 9
"""Hold a node once more."""
PIN = 10
"""Hold a node, and count it and its ancestors as pinned, if no more than so many are then."""
FORGET = 11
"""Let the policy forget the numbers that another tier is about to reuse for a chain."""
LOSE = 12
"""Nodes of a chain are found no more, and are dropped when nobody holds them."""
FAIL = 13
"""The same as RELEASE, and says of no block that it was computed."""

OK = 0
NO_ROOM = 1
"""It does not fit now; nothing has changed."""
BAD_VICTIM = 2
"""The policy named a node that cannot leave; what was stored so far is held."""

BY_POLICY = 0
BY_LIFETIME = 1
BY_LEVEL = 2
UNCOMPUTED = 3

HITS = 0
STORED_BLOCKS = 1
TAKEN = 2
EVICTED = 3
DEEPEST = 4
WAITS = 5
ROOM = 6
SEEN = 7
"""Places in ``report``: nodes hit and stored, blocks taken, nodes that left, the deepest node held,
the first hit that nobody has said is computed (or the hits), blocks that there was room for, and
nothing that means anything."""
