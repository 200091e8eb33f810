"""A model seen as a choice between two of its classes, so that any method can explain one class against another."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from heedful.capabilities import (
    ExposesHeads,
    ExposesLayers,
    ExposesValues,
    HeadTrace,
    LayerInput,
    LayerTrace,
    ValueTrace,
    check_attention_not_imposed,
    read_heads,
    read_layers,
)
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Model, Trace, UserError


class ContrastModel(Model):
    """Another model with the log odds of one class against another as its only output, log p(target) / p(contrast).

    That is the difference of their logits, or the one logit of a binary model with its sign. Class 1 is the target.
    """

    def __init__(self, model: Model, target: int, contrast: int) -> None:
        super().__init__()
        classes = range(model.task.num_classes)
        if target == contrast or target not in classes or contrast not in classes:
            raise UserError(f"the classes {target} and {contrast} cannot be contrasted: give two of {len(classes)}")
        self.model, self.target, self.contrast = model, target, contrast
        self.task, self.notes, self.has_imposed_attention = (
            BinaryClassification(),
            model.notes,
            model.has_imposed_attention,
        )
        self.attention_refusal, self.embedding_refusal = model.attention_refusal, model.embedding_refusal
        self.path_refusal, self.deciding_row = model.path_refusal, model.deciding_row
        self.has_rows_first = model.has_rows_first
        self.tokens_per_pass = model.tokens_per_pass
        self.training = model.training

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of the other model with log odds in place of logits."""
        trace = self.model(batch, embeddings=embeddings, attention=attention)
        return replace(trace, logits=self.log_odds(trace.logits))

    def read_logits(self, batch: Batch, *, embeddings: Tensor | None = None) -> Tensor:
        """Log odds alone."""
        return self.log_odds(self.model.read_logits(batch, embeddings=embeddings))

    def read_embeddings(self, batch: Batch) -> Tensor:
        """Those of the other model."""
        return self.model.read_embeddings(batch)

    @property
    def architecture_summary(self) -> str:
        """That of the other model, whose heads these are."""
        return self.model.architecture_summary

    def log_odds(self, logits: Tensor) -> Tensor:
        """Log odds `[batch 1]` from the logits of the other model."""
        if logits.shape[-1] == 1:
            return logits if self.target == 1 else -logits
        return logits[..., self.target : self.target + 1] - logits[..., self.contrast : self.contrast + 1]


class LayeredContrastModel(ContrastModel):
    """The same of a model that exposes its layers, heads and values."""

    def read_values(
        self, batch: Batch, *, embeddings: Tensor | None = None, with_projections: bool = True
    ) -> ValueTrace:
        """Weights, values and projections of the other model."""
        assert isinstance(self.model, ExposesValues)
        check_attention_not_imposed(self)
        values = self.model.read_values(batch, embeddings=embeddings, with_projections=with_projections)
        return replace(values, logits=self.log_odds(values.logits))

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Head scores of the other model."""
        heads = read_heads(self.model, batch)
        return replace(heads, logits=self.log_odds(heads.logits))

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """Inputs of the layers of the other model."""
        layers = read_layers(self.model, batch, embeddings, replacement)
        return replace(layers, logits=self.log_odds(layers.logits))


def contrast_model(model: Model, target: int, contrast: int) -> ContrastModel:
    """The model with the log odds of `target` against `contrast` as its only output; weights are shared."""
    has_layers = all(isinstance(model, protocol) for protocol in (ExposesValues, ExposesHeads, ExposesLayers))
    return (LayeredContrastModel if has_layers else ContrastModel)(model, target, contrast)
