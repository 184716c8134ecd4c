"""`kvsched lesson play`: a small run of the chapter, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LESSONS = (37,)
"""Those with a step-through."""


def command(
    number: Annotated[int, typer.Argument(help="The lesson's number: 37.", show_default=False)],
    capacity_bytes: Annotated[
        int | None,
        typer.Option(
            "--capacity-bytes",
            help="Capacity to begin with. Without it 100, or for requests of your own the middle "
            "of those that the page offers.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            "--requests",
            metavar="FILE|PREFIX:BYTES,…",
            help="Requests of your own, at most 30: a file with PREFIX BYTES a line, or a list as "
            "in exam:60,chat:16.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="A policy to choose from; may be given several times, the first is shown first. "
            "chapter is the chapter's own heap; default: chapter, lru, lfu, gdsf, opt.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write; default play-37.html."),
    ] = None,
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal",
            help="Step through here instead; printed whole where the input is no terminal.",
        ),
    ] = False,
    language: Annotated[
        str | None,
        typer.Option(help="en or zh. Default: the locale's (LANG), else en.", metavar="LANGUAGE"),
    ] = None,
) -> None:
    """Step through a small run: a page to open in a browser, or here in the terminal."""
    import sys

    from kvsched.cli.opening import keep_apart
    from kvsched.foundation.errors import UsageError
    from kvsched.lesson.frame import Text, choose_language
    from kvsched.lesson.play_policies import DEFAULT_POLICIES, record
    from kvsched.lesson.play_requests import (
        DEFAULT_CAPACITY,
        DEFAULT_REQUESTS,
        capacities,
        check_capacity,
        is_file,
        read_requests,
    )

    if number not in LESSONS:
        there = ", ".join(map(str, LESSONS))
        raise UsageError(f"there is no step-through of lesson {number}; there are {there}")
    say = choose_language(language)
    if terminal and output is not None:
        raise UsageError("--output names a page, and --terminal writes none: give one of them")
    asked = DEFAULT_REQUESTS if requests is None else read_requests(requests)
    own = DEFAULT_CAPACITY if requests is None and capacity_bytes is None else capacity_bytes
    policies = tuple(policy or DEFAULT_POLICIES)
    if not terminal:
        from kvsched.foundation.files import write_whole
        from kvsched.lesson.play import play_page

        place = output or Path(f"play-{number}.html")
        if requests is not None and is_file(requests):
            keep_apart(requests, str(place))
        page = play_page(asked, own, policies, say)
        write_whole(place, page.encode())
        then = Text("open it in a browser", "请用浏览器打开").say(say)
        typer.echo(f"{place}: {then}")
        return
    from rich.console import Console

    from kvsched.lesson.play_terminal import Walk, print_run, walk_through

    console = Console(highlight=False, markup=False)
    first = capacities(asked, own)[1]
    if sys.stdin.isatty() and sys.stdout.isatty():
        walk_through(Walk(asked, first, policies[0], say), console, sys.stdin)
        return
    check_capacity(asked, first)
    for each in policy or policies[:1]:
        print_run(record(asked, first, each), console, say)
