"""`kvsched policies`: list and explain the policies."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsched.cli.options import Format, print_json, split_format


def command(
    name: Annotated[
        str | None, typer.Argument(help="Explain this one: NAME, module:Name or path.py:Name.")
    ] = None,
    format: Format = None,
) -> None:
    """List the policies, or explain one."""
    import inspect

    from kvsched.policy.registry import find, names

    output, _ = split_format(format)
    chosen = [find(each) for each in ([name] if name else names())]
    if output == "json":
        print_json(
            [
                {
                    "name": policy.name,
                    "summary": policy.summary(),
                    "source": policy.source,
                    "looks_ahead": policy.looks_ahead,
                    "needs": list(policy.needs),
                    "parameters": {
                        key: {"default": value.default, "least": value.least, "help": value.help}
                        for key, value in policy.parameters.items()
                    },
                }
                for policy in chosen
            ]
        )
        return
    for policy in chosen:
        if name:
            typer.echo(f"{policy.name}\n\n{inspect.getdoc(policy)}\n")
        else:
            typer.echo(f"{policy.name:10s} {policy.summary()}")
        if policy.needs:
            typer.echo(f"{'':10s}   needs of every request: {', '.join(policy.needs)}")
        if name or policy.parameters:
            for key, value in policy.parameters.items():
                typer.echo(f"{'':10s}   {key}={value.default:g}: {value.help}")
        if name:
            typer.echo(f"Source: {policy.source}")
            if policy.looks_ahead:
                typer.echo("It needs the future: a bound to compare with, no policy to run.")
    if not name:
        typer.echo("\nA policy of your own: --policy path.py:Name or module:Name.")
        typer.echo("A parameter: --policy decay:half_life_s=300.")
