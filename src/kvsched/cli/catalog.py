"""`kvsched models` and `kvsched gpus`: what the catalogue knows."""

from __future__ import annotations

import typer

from kvsched.cli.options import Format, print_json, split_format


def models(format: Format = None) -> None:
    """List the models of the catalogue, with the KV bytes of a token."""
    from kvsched.catalog import load_model, model_names

    output, _ = split_format(format)
    found = [load_model(name) for name in model_names()]
    if output == "json":
        print_json(
            [
                {
                    "name": model.name,
                    "kv_bytes_per_token": model.kv_bytes_per_token(),
                    "kv_constant_bytes": model.kv_constant_bytes(),
                    "parameters": model.parameters,
                    "active_parameters": model.active_parameters,
                    "source": model.source,
                    "notes": model.notes,
                }
                for model in found
            ]
        )
        return
    width = max(len(model.name) for model in found)
    typer.echo(f"{'model':{width}}  KV bytes a token  parameters")
    for model in found:
        size = f"{model.kv_bytes_per_token():,}"
        typer.echo(f"{model.name:{width}}  {size:>16}  {model.parameters / 1e9:8.1f} B")
    typer.echo("\nAny other: --model path/of/config.json.")


def gpus(format: Format = None) -> None:
    """List the accelerators of the catalogue."""
    from kvsched.catalog import accelerators

    output, _ = split_format(format)
    found = list(accelerators())
    if output == "json":
        print_json(found)
        return
    width = max(len(gpu.name) for gpu in found)
    typer.echo(f"{'gpu':{width}}  memory GiB    GB/s  bf16 TFLOP/s")
    for gpu in found:
        speed = f"{gpu.bandwidth_bytes_s / 1e9:7,.0f}  {gpu.bf16_flops / 1e12:12,.1f}"
        typer.echo(f"{gpu.name:{width}}  {gpu.memory_bytes / 2**30:10.1f} {speed}")
