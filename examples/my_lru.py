"""A policy of one's own: --policy examples/my_lru.py:MyLRU."""

from kvsched import RankedPolicy


class MyLRU(RankedPolicy):
    """The prefix that nobody has used for longest leaves first."""

    name = "my-lru"

    @staticmethod
    def key(table, state, node):  # noqa: ARG004
        """Return the moment of the last use: the smallest leaves first."""
        return state.touched[node]
