"""Short sequences worked out by hand, at least one that sets each policy apart from the others.

Each letter is a prompt of one block; a capital is a full block of 16 tokens, ``p`` one of 4.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from factory import BLOCK, PARTIAL, About, make_trace

import kvsched
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, RankedState
from kvsched.replay.run import replay
from kvsched.trace.generate import generate, preset


class Golden(NamedTuple):
    policy: str
    requests: str
    """Letters, two blocks of room."""
    hits: list[int]
    left: str
    """Who left, in order."""
    times: tuple[int, ...] = ()
    """Seconds; one a second where nothing is said."""
    about: tuple[About, ...] = ()


SHORT = "head_tokens=16:head_priority=10:head_duration_s=10"
TOOLS = "lifetime_s=10:tool_lifetime_s=100"
CHAT, TOOL = About(type=0), About(type=1)
TIGHT = "next_prompt_tokens=4:threshold_tokens=20"
IN_A, IN_B, IN_C = (About(session=each) for each in range(3))
AGEING = "AAABCDEAFGA"
TOOL_1, TOOL_2 = (About(session=each, type=1) for each in (1, 2))
CHAT_3, CHAT_4, CHAT_5 = (About(session=each, type=0) for each in (3, 4, 5))

GOLDEN = [
    # C comes when A was used at 2 and B at 1: B leaves. A hits; B comes back over C (3), not A (4).
    Golden("lru", "ABACAB", [0, 0, 1, 0, 1, 0], "BC"),
    # The same, but A was stored first: C pushes A out, A pushes B, B pushes C.
    Golden("fifo", "ABACAB", [0, 0, 1, 0, 0, 0], "ABC"),
    # A was used 3 times, B twice: C pushes B out. B comes back over C, used once.
    Golden("lfu", "AAABBCAB", [0, 1, 1, 0, 1, 0, 1, 0], "BC"),
    # At 6 A and B have 3 uses each, and B is the less recent. It comes back over C (1) with a count
    # of 1: what it had before is forgotten, so it goes before A (4), not after.
    Golden("lfu", "AABBBACABC", [0, 1, 0, 1, 1, 1, 0, 1, 0, 0], "BCB"),
    # The same as lfu's first, but twice or three times is all the same: A (2) goes before B (4).
    # A comes back over C, which was used once, though B is older; B hits.
    Golden("slru", "AAABBCAB", [0, 1, 1, 0, 1, 0, 0, 1], "AC"),
    # One use each, so lfu would drop p, the older. The chapter drops the larger: A scores
    # 1.5 - 0.25·16/32 = 1.375, p 1.5 - 0.25·4/32 = 1.469. Then p hits (2.469); A comes back over
    # C (1.375).
    Golden("chapter", "pACpA", [0, 0, 0, 1, 0], "AC"),
    Golden("lfu", "pACpA", [0, 0, 0, 0, 0], "pAC"),
    # A size weighs less than a hit: A has 2 uses, p one, and p goes.
    Golden("chapter", "pAAC", [0, 0, 1, 0], "p"),
    # Two half-lives on, A's two uses weigh 2·2^-2 = 0.5 and B's one 1: A leaves, which lfu would
    # keep. B hits (2); A comes back over C (1).
    Golden("decay", "AABCBA", [0, 1, 0, 0, 1, 0], "AC", (0, 0, 1200, 1200, 1200, 1200)),
    # Half a half-life on, A weighs 2·2^-0.5 = 1.41 and B 1: B leaves, which lru would keep.
    Golden("decay", "AABCA", [0, 1, 0, 0, 1], "B", (0, 0, 300, 300, 300)),
    # One use each at the same moment; with a size weight of 1, log2 4 = 2 counts against p and
    # log2 16 = 4 against A, which leaves though p is older.
    Golden("decay:size_weight=1", "pAC", [0, 0, 0], "A", (0, 0, 0)),
    # C needs room when A is next used at 3, B at 4: B leaves. When B comes, neither A nor C is
    # used again: the less recent of them, C.
    Golden("opt-fit", "ABCAB", [0, 0, 0, 1, 0], "BC"),
    # C is never used again, so it is not stored, and A and B hit.
    Golden("opt", "ABCAB", [0, 0, 0, 1, 1], ""),
    # C is used again at 4, A never: opt stores C over A.
    Golden("opt", "ABCBC", [0, 0, 0, 1, 1], "A"),
    # C is used again at 5, after A (3) and B (4): it is not stored.
    Golden("opt", "ABCABC", [0, 0, 0, 1, 1, 0], ""),
    # B is the most recent, where lru would drop A.
    Golden("mru", "ABCA", [0, 0, 0, 1], "B"),
    # A is the most recent; B, stored later, stays. A comes back over C.
    Golden("mru", "ABACA", [0, 0, 1, 0, 0], "AC"),
    # The same, but B was stored last, and leaves; so it does where lru would drop A.
    Golden("filo", "ABACA", [0, 0, 1, 0, 1], "B"),
    Golden("filo", "ABCA", [0, 0, 0, 1], "B"),
    # A is at 80, B at 0: B leaves, though A is older.
    Golden("priority", "ABCA", [0, 0, 0, 1], "B", about=(About(priority=80),) + 3 * (About(),)),
    # A second request at 0 does not lower A, which was raised to 80: B, at 35, leaves.
    Golden(
        "priority",
        "AABCA",
        [0, 1, 0, 0, 1],
        "B",
        about=(About(priority=80), About(), About(priority=35), About(priority=35), About()),
    ),
    # All are heads at 10. At 12 s A, of 0 s, is back at 35, and B, of 8 s, is not: B leaves.
    Golden(f"priority:{SHORT}", "ABCA", [0, 0, 0, 1], "B", (0, 8, 12, 12)),
    # At 9 s neither is: A leaves. Back, it comes over B.
    Golden(f"priority:{SHORT}", "ABCA", [0, 0, 0, 0], "AB", (0, 8, 9, 9)),
    # A used again at 9 s is at 10 until 19: at 12 s both are, and B is the less recent.
    Golden(f"priority:{SHORT}", "ABACA", [0, 0, 1, 0, 1], "B", (0, 8, 9, 12, 12)),
    # At 31 s B, of 20 s, is dead; A, of 0 s, was a tool's and lives to 100.
    Golden(f"ttl:{TOOLS}", "ABCA", [0, 0, 0, 1], "B", (0, 20, 31, 31), (TOOL, CHAT, CHAT, CHAT)),
    # At 29 s both live, and A is the less recent; back, it comes over B, dead at 30.
    Golden(f"ttl:{TOOLS}", "ABCA", [0, 0, 0, 0], "AB", (0, 20, 29, 30), (TOOL, CHAT, TOOL, CHAT)),
    # A chat's use does not shorten a tool's lifetime.
    Golden(f"ttl:{TOOLS}", "AABCA", [0, 1, 0, 0, 1], "B", (0, 1, 20, 31, 31), (TOOL, *4 * (CHAT,))),
    # With L = 16 + 7, Q = 4 and x = 20 A's conversation keeps 7 tokens, p's (4 + 7) none: p leaves,
    # though A is older.
    Golden(f"tlru:{TIGHT}", "ApCA", [0, 0, 0, 1], "p", about=(IN_A, IN_B, IN_C, IN_A)),
    # A's conversation has gone on to C, so A is safe; B is older, but its conversation needs it.
    Golden(f"tlru:{TIGHT}", "BACB", [0, 0, 0, 1], "A", about=(IN_B, IN_A, IN_A, IN_B)),
    # The same, where a third conversation still needs A: B, the less recent, leaves.
    Golden(f"tlru:{TIGHT}", "BAACA", [0, 0, 1, 0, 1], "B", about=(IN_B, IN_A, IN_C, IN_A, IN_C)),
    # One use each: p is worth 1/4, A 1/16 and leaves.
    Golden("gdsf", "pACp", [0, 0, 0, 1], "A"),
    # In 1/16: A 3, B 1. C over B, so L = 1 and C 2; D over C, L = 2 and D 3; E over A, as old a 3.
    # Back, A comes over D (L = 3: A 4), F over E (4 too, older; F 5), G over A (4; G 5), A over F.
    Golden("gdsf", AGEING, [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], "BCADEAF"),
    # At the root A's tokens cost 1 + 8/16 each, p's 1 + 2/16: p leaves, though it is smaller.
    Golden("gdsf:attention_tokens=16", "ApCA", [0, 0, 0, 1], "p"),
    # A's new tokens cost 1 + 8/30000 each, p's 1 + 2/30000: p leaves.
    Golden("pgdsf", "ApCA", [0, 0, 0, 1], "p"),
    # As gdsf until A is back: its count goes on to 4, and with the clock at 3 it is worth 7; F
    # over E (4), G over F (5), and A hits.
    Golden("pgdsf", AGEING, [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1], "BCADEF"),
    # The hand clears A's bit and takes B, where lru and fifo would drop A.
    Golden("sieve", "AABCA", [0, 1, 0, 0, 1], "B"),
    # A bit is no count: at D the hand starts again and takes A, which lfu would keep; then C.
    Golden("sieve", "AAABCDA", [0, 1, 1, 0, 0, 0, 0], "BAC"),
    # One block each in small, main and ghost. A, back while remembered, is stored in main over B
    # (small); D takes C's place in small, E D's, and A hits, where lru would have dropped it.
    Golden("s3fifo", "ABCADEA", [0, 0, 0, 0, 0, 0, 1], "ABCD"),
    # Two hits lead to main, so B leaves, then C.
    Golden("s3fifo", "AAABCDA", [0, 1, 1, 0, 0, 0, 1], "BC"),
    # One does not.
    Golden("s3fifo", "AABCA", [0, 1, 0, 0, 0], "AB"),
    # T1 has B, T2 A; p = 0: B leaves for B1. Back, it makes p 1, and T1 has one block, C, no more
    # than p: A leaves for B2. Back, it makes p 0, and C leaves.
    Golden("arc", "AABCBA", [0, 1, 0, 0, 0, 0], "BAC"),
    # B, in the window, was asked for once, as A in the main part, which stays; lru would drop it.
    Golden("wtinylfu", "ABCA", [0, 0, 0, 1], "B"),
    # B was asked for twice and takes A's place; C in the window gives way to A.
    Golden("wtinylfu", "ABBCA", [0, 0, 1, 0, 0], "AC"),
    # All are equally deep: as lru's.
    Golden("marconi", "ABACAB", [0, 0, 1, 0, 1, 0], "BC"),
    # Of what a tool's first turn used half was used again, of a chat's nothing yet: A has
    # ln 2/4 - 2/61·2 = -0.76, B ln 1/3 - 1/60 = -1.12 and leaves, though A is older.
    Golden("wild", "AABCA", [0, 1, 0, 0, 1], "B", about=(TOOL_1, TOOL_2, CHAT_3, CHAT_4, CHAT_5)),
    # In one class as lru's.
    Golden("wild", "ABCA", [0, 0, 0, 0], "AB", about=(CHAT_3, CHAT_4, CHAT_5, TOOL_1)),
]


def key_of(letter: str) -> int:
    return PARTIAL * 4 + ord("p") if letter == "p" else ord(letter)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden.policy}-{golden.requests}")
def test_golden_sequence(golden: Golden) -> None:
    times = golden.times or tuple(range(len(golden.requests)))
    gaps = [times[0], *(after - before for before, after in pairwise(times))]
    tails = [-4 if letter == "p" else 0 for letter in golden.requests]
    trace = make_trace(
        [(ord(letter),) for letter in golden.requests], gaps, tails, list(golden.about)
    )
    result = replay(trace, golden.policy, 2, decisions=True, compiled=False)
    assert result.request_hits.tolist() == golden.hits
    assert result.decisions is not None
    expected = [key_of(letter) for letter in golden.left]
    assert trace.key[result.decisions.victim].tolist() == expected


def test_marconi_keeps_what_is_deep() -> None:
    """2 is deeper than 3 and older: 0.1·1 + 0 against 0 + 1; with α = 2, 2·1 + 0 against 0 + 1."""
    trace = make_trace([(1, 2), (3,), (4,)], [1] * 3, [0] * 3)
    for policy, left in (("marconi", 2), ("marconi:alpha=2", 3), ("marconi:alpha=0", 2)):
        result = replay(trace, policy, 3, decisions=True, compiled=False)
        assert result.decisions is not None
        assert trace.key[result.decisions.victim].tolist() == [left], policy


def test_every_policy_has_one() -> None:
    assert {golden.policy.split(":")[0] for golden in GOLDEN} >= set(kvsched.policies())


@pytest.mark.parametrize("name", kvsched.policies())
def test_tails_leave_before_heads(name: str) -> None:
    """Three blocks of room: (4,) takes the place of 3, then (5,) that of 2; 1 hits.

    The newest first: (5,) takes the place of 4.
    """
    trace = make_trace([(1, 2, 3), (4,), (4,), (5,), (5,), (1,)], [1] * 6, [0] * 6)
    result = replay(trace, name, 3, decisions=True, compiled=False)
    assert result.decisions is not None
    assert trace.key[result.decisions.victim].tolist()[:2] == [
        3,
        4 if name in ("mru", "filo") else 2,
    ]
    assert result.request_hits.tolist() == [0, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("name", kvsched.policies())
def test_a_chain_longer_than_the_cache(name: str) -> None:
    """Two blocks of room: the first two of four stay, and nothing of the chain pushes them out."""
    trace = make_trace([(1, 2, 3, 4)] * 3, [1] * 3, [0, 7, 0])
    result = replay(trace, name, 2, compiled=False)
    assert result.request_hits.tolist() == [0, 2, 2]
    assert (result.evictions, result.resident_blocks) == (0, 2)
    assert result.hit_tokens == 4 * BLOCK


@pytest.mark.parametrize("name", kvsched.policies())
def test_one_block_of_room(name: str) -> None:
    """1 stays through its own request; (3,) pushes it out, except where that cannot pay."""
    trace = make_trace([(1, 2), (1,), (3,), (1, 2)], [1] * 4, [0] * 4)
    last = 1 if name == "opt" else 0
    result = replay(trace, name, 1, compiled=False)
    assert result.request_hits.tolist() == [0, 1, 0, last]
    assert result.evictions == (0 if name == "opt" else 2)


class FloatKey(RankedPolicy):
    """LRU by a float: keys that are no whole numbers keep their order."""

    name = "float-key"

    @staticmethod
    def key(table: Table, state: RankedState, node: int) -> float:
        """Order as LRU does, below and above 0, in steps far smaller than 1."""
        return state.touched[node] / 1e6 - 1e-4


@pytest.mark.parametrize("compiled", [True, False])
def test_a_key_may_be_a_float(compiled: bool) -> None:
    trace = generate(preset("chat", requests=300), 1)
    own = replay(trace, FloatKey, 400, decisions=True, compiled=compiled)
    lru = replay(trace, "lru", 400, decisions=True)
    assert own.decisions is not None
    assert lru.decisions is not None
    assert own.decisions.victim.tolist() == lru.decisions.victim.tolist()
    assert own.evictions > 100
