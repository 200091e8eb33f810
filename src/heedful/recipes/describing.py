"""Short names of models, the same in tables, options, file names and the report."""

from __future__ import annotations

from pathlib import Path

from heedful.core.types import Plan
from heedful.models.pooled import Pooled

_NAMELESS = ("model", "checkpoint", "best", "final")
"""Folders that are called so say nothing about the model; the folder around them does."""


def named(plan: Plan) -> dict[str, str]:
    """Encoder and attention of a plan in lower case, for instance bilstm and additive."""
    if isinstance(plan, Pooled):
        return {"encoder": type(plan.encoder).__name__.lower(), "attention": type(plan.attention).__name__.lower()}
    # Here and not above: the library behind it takes seconds to import, which every worker of a pool would pay.
    from heedful.models.scalarmix import ScalarMix
    from heedful.models.shortened import Shortened
    from heedful.models.transformer import Transformer

    if isinstance(plan, ScalarMix):
        return named(plan.plan)
    if isinstance(plan, Shortened):
        return {"encoder": f"{named(plan.plan)['encoder']}-{plan.layers}-layers", "attention": "self"}
    if isinstance(plan, Transformer):
        path = Path(plan.source)
        return {"encoder": path.parent.name if path.name in _NAMELESS else path.name, "attention": "self"}
    return {"encoder": type(plan).__name__.lower(), "attention": "self"}
