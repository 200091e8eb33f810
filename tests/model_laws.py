"""The laws that every model obeys, as functions that take a case and assert.

A case is a way to build a model from a seed, a batch, and the support of its attention. Whoever adds a model
calls `law(Case(build, batch, scored_units))` for each law of `LAWS + TEXT_LAWS` (`ids=law_name` in
`pytest.mark.parametrize`), on tiny models, best in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from heedful.types import Batch, Model, Trace

# Tiny tensors gain nothing from threads, and threads that wait for a busy core cost ten times as much.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """A model under the laws.

    Args:
        build: a model from a seed: equal seeds give equal weights, other seeds give others.
        batch: at least two rows of unequal length.
        support: where attention may be, boolean, broadcastable to `[batch layer head query unit]`.
    """

    build: Callable[[int], Model]
    batch: Batch
    support: Callable[[Batch], Tensor]

    def model(self, seed: int = 1) -> Model:
        """The model of this seed, ready to judge."""
        return self.build(seed).eval()


Law = Callable[[Case], None]


def law_name(law: Law) -> str:
    """The sentence that a law asserts, for the ids of parametrised tests."""
    return str(getattr(law, "__name__", law))


def real_units(batch: Batch) -> Tensor:
    """Support of models that attend to every real unit, special symbols included (transformers)."""
    return batch.mask[:, None, None, None, :]


def scored_units(batch: Batch) -> Tensor:
    """Support of models that attend to words only (pooled models on one text)."""
    return batch.content_mask[:, None, None, None, :]


def padded(batch: Batch, extra: int, filler: int | None = None) -> Batch:
    """The batch with `extra` more columns of padding; `filler` overrides the id on all padding."""

    def wider(tensor: Tensor, value: int) -> Tensor:
        return nn.functional.pad(tensor, (0, extra), value=value)

    mask = wider(batch.mask, 0)
    inputs = wider(batch.inputs, batch.pad_id)
    return replace(
        batch,
        inputs=inputs if filler is None else inputs.masked_fill(~mask, filler),
        mask=mask,
        segments=wider(batch.segments, 0),
        words=wider(batch.words, -1),
    )


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal to 1e-8 in float64, 1e-5 in float32; infinities must agree."""
    tolerance = 1e-8 if expected.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def assert_same_trace(actual: Trace, expected: Trace, batch: Batch) -> None:
    """Equal on the real units of `batch`, whose trace is `expected`, whatever padding `actual` has."""
    units = min(actual.hidden.shape[1], expected.hidden.shape[1])
    mask = batch.mask[:, :units]
    assert int(batch.mask.sum()) == int(mask.sum())
    for ours, theirs in ((actual.embeddings, expected.embeddings), (actual.hidden, expected.hidden)):
        assert_close(ours[:, :units][mask], theirs[:, :units][mask])
    assert_close(_on_real_units(actual.attention, mask), _on_real_units(expected.attention, mask))
    assert_close(actual.logits, expected.logits)


def _on_real_units(attention: Tensor, mask: Tensor) -> Tensor:
    """Attention cut to the unit axis of `mask`; rows whose query is padding mean nothing and become zero."""
    queries, units = attention.shape[3], mask.shape[1]
    if queries != attention.shape[4]:
        return attention[..., :units]
    return attention[:, :, :, :units, :units] * mask[:, None, None, :, None]


def finite_sum(trace: Trace) -> Tensor:
    """A scalar that depends on every admitted logit, each with another weight."""
    weights = torch.arange(1, trace.logits.shape[1] + 1, dtype=trace.logits.dtype)
    return torch.where(torch.isfinite(trace.logits), trace.logits, 0.0).mul(weights).sum()


def other_attention(attention: Tensor, support: Tensor) -> Tensor:
    """Some other distribution on the support, drawn with a fixed seed."""
    draw = torch.rand(attention.shape, generator=torch.Generator().manual_seed(7), dtype=attention.dtype)
    weights = (draw + 0.1) * support
    return weights / weights.sum(-1, keepdim=True)


def what_comes_out_may_be_put_back_in(case: Case) -> None:
    """Feeding back embeddings, attention or both gives the same trace."""
    model = case.model()
    trace = model(case.batch)
    assert_same_trace(model(case.batch, embeddings=trace.embeddings), trace, case.batch)
    assert_same_trace(model(case.batch, attention=trace.attention), trace, case.batch)
    both = model(case.batch, embeddings=trace.embeddings, attention=trace.attention)
    assert_same_trace(both, trace, case.batch)


def a_given_attention_is_taken_as_it_is(case: Case) -> None:
    """A foreign attention stands in the trace untouched, replaces the scores, and moves the logits."""
    model = case.model()
    own = model(case.batch)
    given = other_attention(own.attention, case.support(case.batch))
    trace = model(case.batch, attention=given)
    assert own.scores is not None
    assert own.scores.shape == own.attention.shape
    assert trace.scores is None
    assert torch.equal(trace.attention, given)
    assert not torch.allclose(trace.logits, own.logits)


def given_embeddings_are_taken_as_they_are(case: Case) -> None:
    """Foreign embeddings stand in the trace untouched and move the logits."""
    model = case.model()
    own = model(case.batch)
    given = own.embeddings.flip(2) * 0.5
    trace = model(case.batch, embeddings=given)
    assert torch.equal(trace.embeddings, given)
    assert not torch.allclose(trace.logits, own.logits)


def attention_is_a_distribution_on_its_support(case: Case) -> None:
    """Weights are non-negative, exactly zero off the support, and each row sums to one; rows of padding to zero."""
    attention = case.model()(case.batch).attention
    support = case.support(case.batch).expand_as(attention)
    assert attention.dim() == 5
    assert bool((attention >= 0).all())
    assert int(torch.count_nonzero(attention[~support])) == 0
    real = torch.ones_like(attention[..., 0])
    if attention.shape[3] == case.batch.mask.shape[1]:
        real = real * case.batch.mask[:, None, None, :]
    assert_close(attention.sum(-1), real)


def company_in_a_batch_changes_nothing(case: Case) -> None:
    """Each row judged alone, without its neighbours' padding, has the trace that it has in the batch."""
    model = case.model()
    whole = model(case.batch)
    for row in range(len(case.batch)):
        alone = case.batch.rows(torch.tensor([row]))
        picked = Trace(
            embeddings=whole.embeddings[row : row + 1],
            hidden=whole.hidden[row : row + 1],
            attention=whole.attention[row : row + 1],
            logits=whole.logits[row : row + 1],
        )
        assert_same_trace(picked, model(alone), alone)


def order_in_a_batch_changes_nothing(case: Case) -> None:
    """The rows in reverse order have the same logits and attention, in reverse order."""
    model = case.model()
    order = torch.arange(len(case.batch) - 1, -1, -1)
    straight, reverse = model(case.batch), model(case.batch.rows(order))
    assert_close(reverse.logits, straight.logits[order])
    mask = case.batch.mask[order]
    assert_close(_on_real_units(reverse.attention, mask), _on_real_units(straight.attention[order], mask))


def more_padding_changes_nothing(case: Case) -> None:
    """Three more columns of padding leave the trace as it was on real units."""
    model = case.model()
    wide = padded(case.batch, 3)
    trace = model(wide)
    assert_same_trace(trace, model(case.batch), case.batch)
    assert trace.attention.shape[-1] == wide.mask.shape[1]


def what_stands_on_padding_changes_nothing(case: Case) -> None:
    """A real word's id under the padding leaves the logits and the attention as they were."""
    model = case.model()
    word = int(case.batch.inputs[case.batch.content_mask].max())
    clean, dirty = padded(case.batch, 2), padded(case.batch, 2, filler=word)
    first, second = model(clean), model(dirty)
    assert_close(second.logits, first.logits)
    assert_close(_on_real_units(second.attention, clean.mask), _on_real_units(first.attention, clean.mask))


def gradients_reach_attention_and_embeddings(case: Case) -> None:
    """Every row's embeddings and every layer of a given attention carry gradient; padding carries none."""
    model = case.model()
    own = model(case.batch)
    embeddings = own.embeddings.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(finite_sum(model(case.batch, embeddings=embeddings)), embeddings)
    assert bool((gradient.abs().sum((1, 2)) > 0).all())
    assert int(torch.count_nonzero(gradient[~case.batch.mask])) == 0
    attention = own.attention.detach().requires_grad_()
    (slope,) = torch.autograd.grad(finite_sum(model(case.batch, attention=attention)), attention)
    assert bool((slope.abs().sum((2, 3, 4)) > 0).all())


def weights_survive_safetensors(case: Case) -> None:
    """A model of another seed that loads the saved weights has the same logits, bit for bit."""
    model, other = case.model(seed=1), case.model(seed=2)
    expected = model(case.batch).logits
    assert not torch.equal(other(case.batch).logits, expected)
    other.load_state_dict(load(save({name: t.contiguous() for name, t in model.state_dict().items()})))
    assert torch.equal(other(case.batch).logits, expected)


def the_seed_alone_decides_the_weights(case: Case) -> None:
    """Equal seeds build equal models, and building leaves the global random state alone."""
    before = torch.get_rng_state()
    first, second = case.model(seed=1), case.model(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first(case.batch).logits, second(case.batch).logits)


def a_judgement_leaves_nothing_behind(case: Case) -> None:
    """Weights, gradients, mode, hooks, the batch and the global random state are as before."""
    model = case.model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs, mask = case.batch.inputs.clone(), case.batch.mask.clone()
    before = torch.get_rng_state()
    first, second = model(case.batch), model(case.batch)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(case.batch.inputs, inputs)
    assert torch.equal(case.batch.mask, mask)


LAWS: tuple[Law, ...] = (
    what_comes_out_may_be_put_back_in,
    a_given_attention_is_taken_as_it_is,
    given_embeddings_are_taken_as_they_are,
    attention_is_a_distribution_on_its_support,
    company_in_a_batch_changes_nothing,
    order_in_a_batch_changes_nothing,
    gradients_reach_attention_and_embeddings,
    weights_survive_safetensors,
    the_seed_alone_decides_the_weights,
    a_judgement_leaves_nothing_behind,
)
"""Laws for every model."""

TEXT_LAWS: tuple[Law, ...] = (more_padding_changes_nothing, what_stands_on_padding_changes_nothing)
"""Laws for models that read ids: images have no padding."""
