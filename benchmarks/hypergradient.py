"""One bilevel step by forward mode against its slow twins, a teacher kept against one asked again, the maps of heads.

All on transformers of six layers with random weights and sentences of random ids. Memory is the peak of the bytes of
live tensors that the work itself makes, counted operation by operation: gradients, tangents and graphs are in it, the
weights and data that were there before and buffers inside a kernel are not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from benchmarks.timing import Row, compared
from heedful.attributions import head_mix
from heedful.capabilities import mean_over_queries, read_heads
from heedful.models.small_transformers import build_network
from heedful.models.transformer import TransformerModel
from heedful.store.recipe import Artefact
from heedful.tasks import MulticlassClassification
from heedful.training.hypergradient import CLIP_EPSILON, BilevelProblem, Parameters, hypergradient, unfused_kernels
from heedful.training.teacher import HeadMaps, TeacherLookup
from heedful.types import Batch, Model

LAYERS, HEADS, WIDTH, VOCABULARY = 6, 8, 256, 1000
ROWS, UNITS, LONG = 16, 64, 256


@dataclass(frozen=True)
class Peak(Row):
    """Megabytes in the place of seconds."""

    unit: ClassVar[str] = "MB"


def rows() -> Iterator[Row]:
    """Seconds and megabytes of the step, then seconds of the cache, then both of the maps."""
    yield from _steps()
    yield _cache()
    yield from _maps()


def _steps() -> Iterator[Row]:
    problem, theta, phi = _problem()
    peers: dict[str, Callable[[], Tensor]] = {
        "double backward through the whole step (attention written out, which it needs)": lambda: double_backward(
            problem, theta, phi
        )[0],
        "central difference along v, two plain forward passes": lambda: (
            hypergradient(problem, theta, phi, forward_mode=False).gradient
        ),
    }

    def ours() -> Tensor:
        return hypergradient(problem, theta, phi).gradient

    title = f"one bilevel step, {LAYERS} layers of {WIDTH}, {ROWS} texts of {UNITS} units"
    for name, peer in peers.items():
        yield compared(title, ours, peer, name)
        yield Peak(f"memory of {title}", peak(ours), peak(peer), name)
        expected = peer()
        apart = (ours() - expected).norm() / expected.norm()
        if not bool(apart < 0.01):
            raise AssertionError(f"forward mode and {name} disagree by {float(apart):.1e}")


def double_backward(problem: BilevelProblem, theta: Parameters, phi: Tensor) -> tuple[Tensor, float]:
    """The hypergradient and the outer loss by differentiating the whole pilot step, its graph kept for phi."""
    leaf = phi.detach().requires_grad_()
    before = {name: tensor.detach().requires_grad_() for name, tensor in theta.items()}
    with torch.enable_grad(), unfused_kernels():
        with torch.random.fork_rng(devices=[]):
            loss, log_student = problem.inner(before)
        loss = loss + problem.beta * problem.divergence(problem.teacher_explanation(leaf), log_student)
        step = torch.autograd.grad(loss, list(before.values()), create_graph=True, materialize_grads=True)
        norm = torch.stack([tensor.square().sum() for tensor in step]).sum().sqrt() + CLIP_EPSILON
        clipped = problem.max_grad_norm is not None and bool(norm > problem.max_grad_norm)
        rate = problem.lr * problem.max_grad_norm / norm if clipped and problem.max_grad_norm else problem.lr
        after = {name: before[name] - rate * tensor for name, tensor in zip(before, step, strict=True)}
        with torch.random.fork_rng(devices=[]):
            outer = problem.outer(after)
        (gradient,) = torch.autograd.grad(outer, [leaf], materialize_grads=True)
    return gradient, float(outer.detach())


def _cache() -> Row:
    """What a student's step needs of its teacher: maps and logits of a batch of known examples."""
    teacher, batch = _model(1), _sentences(20 * ROWS, UNITS, 0)
    maps, logits = HeadMaps().compute_maps(teacher, batch)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), batch.lengths.cumsum(0)))
    flat = maps.transpose(1, 2)[batch.mask]
    tensors = {"logits": logits, "offsets": offsets, "scored": batch.content_mask[batch.mask], "maps": flat}
    taught = TeacherLookup(Artefact(tensors, pd.DataFrame({"uid": batch.uids}), {}))
    part = batch.rows(torch.arange(5, 5 + ROWS))
    if not torch.allclose(taught.maps(part), HeadMaps().compute_maps(teacher, part)[0], atol=1e-4):
        raise AssertionError("the teacher that is kept says something else than the teacher")

    def kept() -> None:
        taught.maps(part)
        taught.logits(part)

    title = f"a teacher's {LAYERS * HEADS} head maps and logits for a step, {ROWS} texts of {UNITS} units, looked up"
    return compared(
        title, kept, lambda: HeadMaps().compute_maps(teacher, part), "the teacher asked again at every step"
    )


def _maps() -> Iterator[Row]:
    model, batch = _model(1), _sentences(8, LONG, 0)

    def ours() -> Tensor:
        return read_heads(model, batch).scores

    def peer() -> Tensor:
        scores = model(batch).scores
        assert scores is not None
        return mean_over_queries(scores, batch.mask)

    name = "mean over queries of the full scores [batch layer head query unit]"
    for doing, mode in (("read", torch.no_grad), ("read and differentiated", torch.enable_grad)):
        title = f"head maps of 8 texts of {LONG} units, {doing}"
        fast, slow = (_passed(model, work, mode) for work in (ours, peer))
        yield compared(title, fast, slow, name)
        yield Peak(f"memory of {title}", peak(fast), peak(slow), name)
    with torch.no_grad():
        if not torch.allclose(ours(), peer(), rtol=1e-3, atol=1e-4):
            raise AssertionError("the fast maps are not the mean scores")


def _passed(
    model: Model, work: Callable[[], Tensor], mode: Callable[[], AbstractContextManager[None]]
) -> Callable[[], object]:
    """The work, followed by a backward pass to all weights where gradients are on."""

    def done() -> object:
        with mode():
            found = work()
            if not found.requires_grad:
                return found
            return torch.autograd.grad(found.square().mean(), list(model.parameters()), allow_unused=True)

    return done


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors made since it began; `most` is their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.now, self.most = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Runs the operation, then notes the storages of its results."""
        known = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage._cdata not in self.live:
                self._note(storage)
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.live[key] = size
        self.now += size
        self.most = max(self.most, self.now)
        # torch keeps one Python object for a storage as long as it lives.
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self.live.pop(key)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def peak(work: Callable[[], object]) -> float:
    """Megabytes that the work's own tensors take at most."""
    counting = Counting()
    with counting:
        work()
    return counting.most / 1e6


class Student(nn.Module):
    """A network and the phi of its explainer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.phi = model, nn.Parameter(head_mix.uniform_phi(LAYERS * HEADS))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and log e_S."""
        heads = read_heads(self.model, batch)
        return heads.logits, head_mix.masked_log_softmax(
            head_mix.mix_maps(heads.maps, self.phi, "sparsemax"), batch.content_mask
        )


def _problem() -> tuple[BilevelProblem, Parameters, Tensor]:
    """The paper's step: SGD, beta 5, clip 5, the outer batch as large as the inner one."""
    student, batch, held = Student(_model(0)), _sentences(ROWS, UNITS, 0), _sentences(ROWS, UNITS, 1)
    maps = HeadMaps().compute_maps(_model(1), batch)[0]

    def inner(theta: Parameters) -> tuple[Tensor, Tensor]:
        logits, explained = functional_call(student, dict(theta), (batch,))
        return nn.functional.cross_entropy(logits, _labels(batch)), explained

    def outer(theta: Parameters) -> Tensor:
        return nn.functional.cross_entropy(functional_call(student, dict(theta), (held,))[0], _labels(held))

    problem = BilevelProblem(
        inner=inner,
        outer=outer,
        teacher_explanation=lambda phi: head_mix.masked_softmax(
            head_mix.mix_maps(maps, phi, "sparsemax"), batch.content_mask
        ),
        divergence=lambda teacher, explained: head_mix.clamped_kl_divergence(
            teacher, explained, batch.content_mask
        ).mean(),
        lr=5e-3,
        beta=5.0,
        max_grad_norm=5.0,
    )
    return problem, dict(student.named_parameters()), head_mix.uniform_phi(LAYERS * HEADS)


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


def _model(seed: int) -> Model:
    config = AutoConfig.for_model(
        "bert",
        num_labels=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=LONG,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        initializer_range=0.05,
    )
    network = build_network(config, Generator().manual_seed(seed))
    return TransformerModel.wrap(network, MulticlassClassification(2)).eval()


def _sentences(count: int, units: int, seed: int) -> Batch:
    """Rows of half to all of so many units, the first one special; the first row is full."""
    draw = Generator().manual_seed(seed)
    lengths = torch.randint(units // 2, units + 1, (count, 1), generator=draw)
    lengths[0] = units
    place = torch.arange(units).expand(count, units)
    inputs = torch.randint(4, VOCABULARY, (count, units), generator=draw).masked_fill(place >= lengths, 0)
    words = (place - 1).masked_fill(place >= lengths, -1)
    labels = torch.randint(0, 2, (count,), generator=draw)
    uids = tuple(f"row-{number}" for number in range(count))
    return Batch(uids, inputs, place < lengths, torch.zeros_like(inputs), words, labels)
