"""What a generated workload is: a tree of frozen settings, each with its unit and its range."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Struct


class Between(NamedTuple):
    """The least and the most that a number may be, both allowed."""

    low: float
    high: float


MOST_TOKENS = 2**24
MOST_SECONDS = 1e9

Count = Annotated[int, Between(1, 10**8)]
Pool = Annotated[int, Between(1, 10**7)]
Tokens = Annotated[int, Between(0, MOST_TOKENS)]
Share = Annotated[float, Between(0, 1)]
Exponent = Annotated[float, Between(0, 10)]
Amount = Annotated[float, Between(0, MOST_SECONDS)]
Positive = Annotated[float, Between(1e-6, MOST_SECONDS)]


class Spread(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lognormal amount, cut off at both ends; tokens or seconds, as where it is used says."""

    median: Amount
    """Half of the draws are below it."""
    sigma: Annotated[float, Between(0, 6)] = 0.0
    """Standard deviation of the logarithm; 0 gives the median every time."""
    low: Amount = 0.0
    """Draws below are raised to it."""
    high: Amount = 1e6
    """Draws above are lowered to it."""


class Turns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many requests a session has."""

    mean: Annotated[float, Between(1, 10**6)] = 1.0
    """Mean before ``most`` cuts it."""
    shape: Literal["geometric", "lognormal"] = "geometric"
    """Geometric: the same chance to go on after every turn. Lognormal: a few long sessions."""
    sigma: Annotated[float, Between(0, 4)] = 1.0
    """Standard deviation of the logarithm, lognormal only."""
    most: Annotated[int, Between(1, 10**6)] = 1000
    """No session has more."""


class Prompts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shared system prompts; every tenant has its own ``count`` of them."""

    count: Pool
    """Different prompts of one tenant."""
    exponent: Exponent = 1.0
    """Zipf: the k-th most popular is drawn with weight 1 / k^exponent."""
    tokens: Spread
    """Length of one prompt, without the workload's preamble."""


class Documents(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents that stand between the system prompt and the conversation, shared by sessions."""

    count: Pool
    """Different documents."""
    exponent: Exponent = 0.8
    """Zipf exponent of their popularity."""
    tokens: Spread
    """Length of one document."""
    each: Annotated[int, Between(1, 64)] = 4
    """Documents in one prompt; drawn with replacement, in the order drawn."""
    every: Literal["session", "turn"] = "session"
    """Drawn once a session, or anew for every request (then the chain breaks before them)."""
    share: Share = 1.0
    """Share of the sessions that have any."""


class Tools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tool calls of an agent: turns that follow by themselves, without a person's thinking."""

    share: Share = 0.8
    """Share of the later turns that bring a tool's output and not a person's text."""
    time_s: Spread
    """Seconds that a tool runs."""
    tokens: Spread
    """Length of a tool's output."""


class Stream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of sessions; its name is the requests' ``type``."""

    name: str
    """Type of its requests: chat, agent, single, …"""
    share: Share = 1.0
    """Share of all requests, after division by the sum of the shares."""
    turns: Turns = Turns()
    """Requests in a session."""
    first: Spread
    """Tokens of a session's first text."""
    text: Spread
    """Tokens that a person adds at each later turn."""
    output: Spread
    """Tokens generated."""
    think_s: Spread = Spread(median=30.0, sigma=1.0, low=0.5, high=7200.0)
    """Seconds between an answer's end and a person's next turn."""
    prompts: Prompts | None = None
    """Shared system prompts; None where nothing is shared, the preamble neither."""
    documents: Documents | None = None
    """Shared documents; None for none."""
    tools: Tools | None = None
    """Tool calls; None for a conversation without."""
    priority: Annotated[int, Between(-(2**31), 2**31 - 1)] = 0
    """Priority of its requests, larger is more important; a column where any is not 0."""


class Poisson(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="poisson"):
    """Sessions begin independently, at one rate."""


class Bursts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="bursts"):
    """The rate of beginning sessions jumps between quiet and busy (Markov-modulated Poisson)."""

    ratio: Annotated[float, Between(1, 10**4)] = 8.0
    """Busy rate over quiet rate."""
    share: Annotated[float, Between(0.001, 0.999)] = 0.1
    """Share of the time that is busy."""
    length_s: Annotated[float, Between(0.1, 10**7)] = 30.0
    """Mean seconds that a busy stretch lasts; lengths are exponential."""


class Day(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="day"):
    """The rate of beginning sessions follows a sine; the trace begins at its lowest."""

    amplitude: Annotated[float, Between(0, 1)] = 0.8
    """0 is level; 1 falls to nothing at night and doubles at noon."""
    period_s: Annotated[float, Between(1, 10**8)] = 86400.0
    """Seconds in a day."""


Arrivals = Poisson | Bursts | Day


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a generated trace."""

    name: str
    """Name of the workload; the trace's source."""
    requests: Count
    """Requests in the trace, exactly."""
    rate: Annotated[float, Between(1e-6, 10**6)]
    """Requests a second on average; the trace lasts about ``requests / rate`` seconds."""
    streams: tuple[Stream, ...]
    """The kinds of sessions, at least one."""
    arrivals: Arrivals = Poisson()
    """How sessions begin."""
    block_size: Annotated[int, Between(1, 10**6)] = 512
    """Tokens in a block."""
    tenants: Annotated[int, Between(1, 10**6)] = 1
    """Tenants, each with system prompts of its own."""
    tenant_exponent: Exponent = 1.0
    """Zipf exponent of the tenants' traffic."""
    preamble_tokens: Tokens = 0
    """Tokens at the head of every prompt that has a system prompt, the same for all tenants."""
    context_limit: Annotated[int, Between(2, MOST_TOKENS)] = 131072
    """No prompt has more tokens."""
    on_limit: Literal["truncate", "restart", "end"] = "truncate"
    """At the limit: drop the oldest half of what fits, drop all history, or end the session.

    The first two keep what stands before the conversation and break the chain after it."""
    warm_up_s: Amount = 0.0
    """Seconds of traffic before the first request, left out, so that the trace begins in the
    middle of sessions like a recording does."""
    answer_tokens_per_s: Positive = 40.0
    """Generation speed, which puts the next turn off."""
    time_grid_s: Annotated[float, Between(0, 3600)] = 0.0
    """Times are rounded down to multiples of it; below 0.001, to a millisecond."""
