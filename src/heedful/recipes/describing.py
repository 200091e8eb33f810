"""Short names of models, the same in tables, options, file names and the report."""

from __future__ import annotations

from pathlib import Path

from heedful.core.types import Plan
from heedful.models.pooled import Pooled
from heedful.models.transformer import Transformer


def named(plan: Plan) -> dict[str, str]:
    """Encoder and attention of a plan in lower case, for instance bilstm and additive."""
    if isinstance(plan, Pooled):
        return {"encoder": type(plan.encoder).__name__.lower(), "attention": type(plan.attention).__name__.lower()}
    if isinstance(plan, Transformer):
        return {"encoder": Path(plan.source).name, "attention": "self"}
    return {"encoder": type(plan).__name__.lower(), "attention": "self"}
