"""Models and accelerators as data: what a token's KV cache takes, what a request costs.

Data lies in `data/`, one file a model, with published fields as they are; everything else is
derived. Imports only `foundation`.
"""

from kvsched.catalog.accelerators import (
    Accelerator,
    accelerator_names,
    accelerator_notes,
    accelerators,
    find_accelerator,
)
from kvsched.catalog.capacity import (
    Capacity,
    Reserve,
    blocks_to_gib,
    bytes_per_block,
    capacity_from_blocks,
    capacity_from_gib,
    capacity_from_gpu,
    capacity_from_tokens,
    gib_to_blocks,
    parse_reserve,
)
from kvsched.catalog.layers import Layers, attended_pairs
from kvsched.catalog.model import Model
from kvsched.catalog.models import load_model, model_from_config, model_names

__all__ = [
    "Accelerator",
    "Capacity",
    "Layers",
    "Model",
    "Reserve",
    "accelerator_names",
    "accelerator_notes",
    "accelerators",
    "attended_pairs",
    "blocks_to_gib",
    "bytes_per_block",
    "capacity_from_blocks",
    "capacity_from_gib",
    "capacity_from_gpu",
    "capacity_from_tokens",
    "find_accelerator",
    "gib_to_blocks",
    "load_model",
    "model_from_config",
    "model_names",
    "parse_reserve",
]
