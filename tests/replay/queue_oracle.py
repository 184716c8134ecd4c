"""Policies with queues again, slow and plain, each kept to what can leave as its docstring says.

Nothing of kvsched runs here. Queues are sorted lists; what a policy's hand may see is asked anew
at every step. On chains of one block each is the published algorithm. Where nodes take different
room every queue is measured by it, and shares of the capacity are whole usual nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from oracle import Step, Workload

Place = tuple[int, ...]


class Queues:
    """One policy's memory; ``now`` and the node's depth are all that it is told of a request."""

    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        self.work = work
        self.capacity = capacity
        self.size = size
        self.usual = usual
        """What a node takes on average."""
        self.now = 0

    def share(self, of: int, part: float) -> int:
        """A part of ``of`` in usual nodes, rounded down, as room."""
        return int(of // self.usual * part) * self.usual

    def sum(self, nodes: Iterable[int]) -> int:
        return sum(self.size[node] for node in nodes)

    def depth(self, node: int) -> int:
        above = self.work.parent[node]
        return 0 if above < 0 else self.depth(above) + 1

    def touch(self, node: int) -> Place:
        """The order of touches: by request, a deeper node before a shallower one."""
        return (self.now, -self.depth(node))

    def begin(self) -> None: ...

    def hit(self, node: int) -> None: ...

    def choose(self, free: set[int], incoming: int) -> int:
        """Name one of ``free``, the nodes that can leave."""
        raise NotImplementedError

    def drop(self, node: int, incoming: int) -> None: ...

    def store(self, node: int, free: set[int]) -> None: ...


class Sieve(Queues):
    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.queue: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0

    def hit(self, node: int) -> None:
        self.visited.add(node)

    def ahead(self, free: set[int]) -> list[int]:
        return [node for node in self.queue[self.hand :] if node in free]

    def choose(self, free: set[int], incoming: int) -> int:
        while True:
            if not self.ahead(free):
                self.hand = 0
            node = self.ahead(free)[0]
            if node not in self.visited:
                return node
            self.visited.remove(node)
            self.hand = self.queue.index(node) + 1

    def drop(self, node: int, incoming: int) -> None:
        self.hand = self.queue.index(node)
        self.queue.remove(node)

    def store(self, node: int, free: set[int]) -> None:
        if not self.ahead(free):
            self.hand = 0
        self.queue.append(node)
        self.visited.discard(node)


class S3FIFO(Queues):
    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.small: dict[int, Place] = {}
        self.main: dict[int, Place] = {}
        self.ghost: list[int] = []
        self.freq: dict[int, int] = {}
        self.room = max(usual, self.share(capacity, 0.1))
        self.moves = 0

    def hit(self, node: int) -> None:
        self.freq[node] = min(3, self.freq[node] + 1)

    def to_main(self, node: int) -> None:
        self.moves += 1
        self.main[node] = (self.now, 0, self.moves)

    def first(self, queue: dict[int, Place], free: set[int]) -> int | None:
        return min((node for node in queue if node in free), key=queue.__getitem__, default=None)

    def of_small(self, free: set[int]) -> int | None:
        while (node := self.first(self.small, free)) is not None:
            if self.freq[node] <= 1:
                return node
            while node in self.small:
                del self.small[node]
                self.to_main(node)
                self.freq[node] = 0
                node = self.work.parent[node]
        return None

    def of_main(self, free: set[int]) -> int | None:
        while (node := self.first(self.main, free)) is not None:
            if self.freq[node] == 0:
                return node
            self.freq[node] -= 1
            self.to_main(node)
        return None

    def choose(self, free: set[int], incoming: int) -> int:
        turns = [self.of_small, self.of_main]
        if self.sum(self.small) < self.room:
            turns.insert(0, self.of_main)
        return next(node for turn in turns if (node := turn(free)) is not None)

    def drop(self, node: int, incoming: int) -> None:
        if node in self.main:
            del self.main[node]
        else:
            del self.small[node]
            self.ghost.append(node)

    def store(self, node: int, free: set[int]) -> None:
        self.freq[node] = 0
        place = (self.now, 1, -self.depth(node))
        if node in self.ghost:
            self.ghost.remove(node)
            self.main[node] = place
            above = self.work.parent[node]
            while above in self.small:
                del self.small[above]
                self.main[above] = (self.now, 1, -self.depth(above))
                self.freq[above] = 0
                above = self.work.parent[above]
        else:
            self.small[node] = place
        self.forget()

    def forget(self) -> None:
        while self.sum(self.ghost) > max(0, self.share(self.capacity, 1.0) - self.room):
            self.ghost.pop(0)

    def begin(self) -> None:
        self.forget()


class ARC(Queues):
    """p is in usual nodes."""

    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.t1: dict[int, Place] = {}
        self.t2: dict[int, Place] = {}
        self.b1: list[int] = []
        self.b2: list[int] = []
        self.p = 0.0
        self.next: tuple[int, int, float] = (-1, -1, 0.0)
        """Request and node to be stored, and what p is then."""

    def hit(self, node: int) -> None:
        self.t1.pop(node, None)
        self.t2[node] = self.touch(node)

    def adapted(self, incoming: int) -> float:
        if self.next[:2] == (self.now, incoming):
            return self.next[2]
        p, weight = self.p, self.size[incoming] / self.usual
        one, two = self.sum(self.b1), self.sum(self.b2)
        if incoming in self.b1:
            p = min(p + weight * (1 if one >= two else two / one), self.capacity / self.usual)
        elif incoming in self.b2:
            p = max(p - weight * (1 if two >= one else one / two), 0)
        self.next = (self.now, incoming, p)
        return p

    def choose(self, free: set[int], incoming: int) -> int:
        p = self.adapted(incoming)
        size = self.sum(self.t1) / self.usual
        from_t1 = size > p or (incoming in self.b2 and len(self.t1) > 0 and size == p)
        one = [node for node in sorted(self.t1, key=self.t1.__getitem__) if node in free]
        two = [node for node in sorted(self.t2, key=self.t2.__getitem__) if node in free]
        return (one + two if from_t1 else two + one)[0]

    def drop(self, node: int, incoming: int) -> None:
        (self.b1 if node in self.t1 else self.b2).append(node)
        self.t1.pop(node, None)
        self.t2.pop(node, None)

    def store(self, node: int, free: set[int]) -> None:
        seen = node in self.b1 or node in self.b2
        if seen:
            self.p = self.adapted(node)
        for ghosts in (self.b1, self.b2):
            if node in ghosts:
                ghosts.remove(node)
        (self.t2 if seen else self.t1)[node] = self.touch(node)
        while self.sum(self.t1) + self.sum(self.b1) > self.capacity:
            self.b1.pop(0)
        both = self.sum(self.t1) + self.sum(self.t2)
        while both + self.sum(self.b1) + self.sum(self.b2) > 2 * self.capacity:
            self.b2.pop(0)


class WTinyLFU(Queues):
    """Counts exactly, where the policy has a sketch: the same for nodes this few."""

    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.window: dict[int, Place] = {}
        self.probation: list[int] = []
        self.protected: dict[int, Place] = {}
        whole = max(usual, self.share(capacity, 1.0))
        self.room = max(usual, self.share(capacity, 0.01))
        self.kept = self.share(whole - self.room, 0.8)
        self.sample = 10 * (whole // usual)
        self.counted: dict[int, int] = {}
        self.added = 0
        self.last: Place = ()

    def count(self, node: int) -> None:
        if self.last == (self.now, node):
            return
        self.last = (self.now, node)
        self.counted[node] = min(15, self.counted.get(node, 0) + 1)
        self.added += self.size[node]
        if self.added >= self.sample * self.usual:
            self.added -= (self.sample - self.sample // 2) * self.usual
            self.counted = {node: uses // 2 for node, uses in self.counted.items()}

    def shift(self, queue: dict[int, Place], room: int) -> None:
        while self.sum(queue) > room:
            last = min(queue, key=queue.__getitem__)
            del queue[last]
            self.probation.append(last)

    def hit(self, node: int) -> None:
        self.count(node)
        if node in self.window:
            self.window[node] = self.touch(node)
            return
        if node in self.probation:
            self.probation.remove(node)
        self.protected[node] = self.touch(node)
        self.shift(self.protected, self.kept)

    def choose(self, free: set[int], incoming: int) -> int:
        self.count(incoming)
        kept = sorted(self.protected, key=self.protected.__getitem__)
        main = [node for node in self.probation + kept if node in free]
        new = [n for n in sorted(self.window, key=self.window.__getitem__) if n in free]
        if not new or not main:
            return (new + main)[0]
        wins = self.counted.get(new[0], 0) > self.counted.get(main[0], 0)
        return main[0] if wins else new[0]

    def drop(self, node: int, incoming: int) -> None:
        self.window.pop(node, None)
        self.protected.pop(node, None)
        if node in self.probation:
            self.probation.remove(node)

    def store(self, node: int, free: set[int]) -> None:
        self.count(node)
        self.window[node] = self.touch(node)
        self.shift(self.window, self.room)


class Marconi(Queues):
    """The oldest of each class of depths, compared by the paper's score."""

    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.last: dict[int, tuple[float, Place]] = {}

    def hit(self, node: int) -> None:
        self.last[node] = (self.work.time_s[self.now], self.touch(node))

    def store(self, node: int, free: set[int]) -> None:
        self.hit(node)

    def likeness(self, node: int) -> tuple[int, int]:
        depth = self.depth(node)
        octave = depth.bit_length()
        return (octave, depth if octave < 4 else depth >> (octave - 3))

    def choose(self, free: set[int], incoming: int) -> int:
        heads: dict[tuple[int, int], int] = {}
        for node in sorted(free, key=lambda node: self.last[node][1]):
            heads.setdefault(self.likeness(node), node)
        now = self.work.time_s[self.now]
        recency = {n: 1 / max(1.0, now - self.last[n][0]) for n in heads.values()}
        flops = {n: float(self.depth(n)) for n in heads.values()}

        def norm(of: dict[int, float], node: int) -> float:
            low, high = min(of.values()), max(of.values())
            return (of[node] - low) / (high - low) if high > low else 0.0

        return min(
            heads.values(),
            key=lambda n: (self.alpha() * norm(flops, n) + norm(recency, n), self.last[n][1]),
        )

    def alpha(self) -> float:
        return 0.1


class Wild(Queues):
    """All candidates compared: within a class the oldest is the least likely."""

    def __init__(self, work: Workload, capacity: int, size: Sequence[int], usual: int) -> None:
        super().__init__(work, capacity, size, usual)
        self.last: dict[int, tuple[float, Place]] = {}
        self.kind: dict[int, Place] = {}
        self.uses: dict[Place, float] = {}
        self.gaps: dict[Place, list[tuple[float, float]]] = {}
        """Weight of the node, and seconds to its reuse."""
        self.life = 0.0
        self.left = 0
        self.learnt: dict[Place, tuple[float, float]] = {}
        self.learnt_at = -1
        self.life_s, self.had_left = 0.0, False

    def kind_of(self, node: int) -> Place:
        return (min(6, self.work.type[self.now]), min(8, max(1, self.work.turn[self.now])))

    def learn(self) -> None:
        """What is known of each class when a request begins."""
        if self.learnt_at == self.now:
            return
        self.learnt_at = self.now
        self.life_s, self.had_left = self.life, self.left > 0
        for kind in {*self.uses, *self.kind.values()}:
            gaps = self.gaps.get(kind, [])
            weight = sum(each for each, _ in gaps)
            share = (weight + 1) / (self.uses[kind] + 2)
            seconds = sum(each * gap for each, gap in gaps)
            self.learnt[kind] = (share, (weight + 1) / (seconds + 60))

    def hit(self, node: int) -> None:
        self.learn()
        time = self.work.time_s[self.now]
        weight = self.size[node] / self.usual
        if node in self.last:
            gap = time - self.last[node][0]
            self.gaps.setdefault(self.kind[node], []).append((weight, gap))
        kind = self.kind_of(node)
        self.uses[kind] = self.uses.get(kind, 0) + weight
        self.kind[node] = kind
        self.last[node] = (time, self.touch(node))

    def store(self, node: int, free: set[int]) -> None:
        self.hit(node)

    def chance(self, node: int) -> int:
        share, rate = self.learnt.get(self.kind[node], (1 / 2, 1 / 60))
        age = self.work.time_s[self.now] - self.last[node][0]
        ln = math.log(share) - rate * age
        if self.had_left:
            ln += math.log(max(1 - math.exp(-rate * self.life_s), 1e-300))
        return math.floor(ln * 2**20 + 0.5)

    def choose(self, free: set[int], incoming: int) -> int:
        self.learn()
        return min(free, key=lambda n: (self.chance(n), -self.depth(n), self.last[n][1]))

    def drop(self, node: int, incoming: int) -> None:
        room = self.size[node]
        self.left = min(self.left + room, self.capacity)
        age = self.work.time_s[self.now] - self.last[node][0]
        self.life += (age - self.life) / (self.left / room)


QUEUES: dict[str, type[Queues]] = {
    "sieve": Sieve,
    "s3fifo": S3FIFO,
    "arc": ARC,
    "wtinylfu": WTinyLFU,
    "marconi": Marconi,
    "wild": Wild,
}


def replay(
    work: Workload, policy: str, capacity: int, room: Sequence[int] = (), usual: int = 1
) -> list[Step]:
    """Replay one request after another; return what each did.

    ``room``: what each node takes of the capacity, 1 if empty; ``usual``: on average.
    """
    size = room or [1] * len(work.tokens)
    queues = QUEUES[policy](work, capacity, size, usual)
    held: set[int] = set()
    steps = []
    for now, chain in enumerate(work.chains):
        queues.now = now
        queues.begin()
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            queues.hit(chain[hits])
            hits += 1
        evicted: list[int] = []
        at = hits
        while at < len(chain):
            incoming = chain[at]
            fits = size[incoming] <= capacity
            while fits and queues.sum(held) + size[incoming] > capacity:
                free = held - {work.parent[node] for node in held} - set(chain)
                fits = bool(free)
                if not fits:
                    break
                victim = queues.choose(free, incoming)
                assert victim in free
                queues.drop(victim, incoming)
                held.remove(victim)
                evicted.append(victim)
            if not fits:
                break
            queues.store(incoming, held - {work.parent[node] for node in held} - set(chain))
            held.add(incoming)
            at += 1
        steps.append(Step(hits, at - hits, evicted))
    return steps
