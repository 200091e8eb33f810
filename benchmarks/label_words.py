"""A small GPT-2, trained from scratch to say " good" or " bad" behind a film review, and put to the trials.

Run `HEEDFUL_DATA=... python -m benchmarks.label_words [--out FOLDER] [--texts 200] [--epochs 4]`. It trains a causal
language model on SST with the cross-entropy of the label word at the last position over the whole vocabulary, saves a
Hugging Face folder (`model`), and reads that folder as anybody's language model: agreement, permutation, adversarial
attention, faithfulness and plausibility, with a report. It takes minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Generator, Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from heedful.attributions.attention import HeadAttention, RawAttention, Rollout
from heedful.attributions.controls import Random
from heedful.attributions.gradient import InputXGradient
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.embeddings import PackagedGloveEmbeddings
from heedful.data.prompt import PromptTokenizer, read_prompt
from heedful.data.text_corpora import SST
from heedful.execution.runner import run
from heedful.report import write_report
from heedful.seeding import temporary_seed
from heedful.store.workspace import Workspace
from heedful.training.checkpoint import Checkpoint, checkpoint
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.trial import Trial
from heedful.types import Batch, Example

PROMPT = "review : {text} sentiment :"
LABELS = {"negative": " bad", "positive": " good"}
SPECIAL = PAD, UNK = ("<pad>", "<unk>")
LAYERS, HEADS, WIDTH, POSITIONS = 2, 5, 100, 96
BATCH, RATE, DROPOUT, WORD_DROPOUT = 32, 1e-3, 0.3, 0.2


def main() -> None:
    """Train, save, run the trials and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("label_words"))
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    workspace, folder = Workspace(given.out / "workspace"), given.out / "model"
    corpus, start = SST(tree_leaves=True), time.monotonic()
    if not folder.is_dir():
        splits = corpus.read(workspace.data_dir)
        network, tokenizer = train(splits.train, splits.dev, workspace.data_dir, given.epochs, given.seed)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        print(f"trained in {time.monotonic() - start:.0f} s")
    subject = checkpoint(str(folder), corpus, prompt=PROMPT, labels=LABELS)
    for trial in trials(subject, given.texts):
        start = time.monotonic()
        (outcome,) = [outcome for outcome in run([trial], workspace) if outcome.recipe == trial]
        if outcome.error is not None:
            print(f"{trial.name} failed: {outcome.error}")
            continue
        print(f"{trial.name} ({time.monotonic() - start:.0f} s): {trial.interpretation(workspace.get(trial).summary)}")
    print(write_report(workspace, given.out / "report"))


def trials(subject: Checkpoint, texts: int) -> Sequence[Trial]:
    """What is asked of the model."""
    methods = (RawAttention(), HeadAttention(), Rollout(), InputXGradient(), IntegratedGradients(), LeaveOneOut())
    return (
        Performance(subject),
        Agreement(subject, methods, limit=texts),
        Permutation(subject, limit=texts),
        AdversarialAttention(subject, limit=texts),
        Faithfulness(subject, (*methods, Random()), limit=texts),
        Plausibility(subject, methods, limit=texts),
    )


def train(
    examples: Sequence[Example], dev: Sequence[Example], data: Path, epochs: int, seed: int
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """The network of the best epoch on the dev split, and its tokenizer of whole words."""
    counts = Counter(word for example in examples for word in str(example.parts[0]).lower().split())
    extra = {word for word in f"{PROMPT} {' '.join(LABELS.values())}".split() if word != "{text}"}
    words = sorted({word for word, count in counts.items() if count > 1} | extra)
    tokenizer = word_tokenizer(words)
    generator = Generator().manual_seed(seed)
    table = PackagedGloveEmbeddings().look_up((*SPECIAL, *words), data, generator).matrix
    with temporary_seed(seed):
        network = build(table)
    reader = PromptTokenizer(tokenizer, read_prompt(PROMPT), max_length=POSITIONS)
    labels = torch.tensor([ids[0] for ids in reader.label_tokens(LABELS)])
    batches = reader(examples), reader(dev)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.05)
    steps = epochs * math.ceil(len(examples) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    best, kept = 0.0, {name: value.clone() for name, value in network.state_dict().items()}
    with temporary_seed(seed):
        for epoch in range(epochs):
            nn.Module.train(network)
            for part in mixed_batches(batches[0], generator):
                ids = drop_words(part, generator)
                loss = nn.functional.cross_entropy(last_logits(network, part, ids), labels[part.labels])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            score = accuracy(network, batches[1], labels)
            print(f"epoch {epoch + 1}: dev accuracy {score:.3f}", flush=True)
            if score > best:
                best, kept = score, {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(kept)
    nn.Module.train(network, mode=False)
    return network, tokenizer


def build(table: Tensor) -> GPT2LMHeadModel:
    """A GPT-2 whose word vectors begin with these."""
    config = GPT2Config(
        vocab_size=len(table),
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=DROPOUT,
        embd_pdrop=DROPOUT,
        attn_pdrop=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    network = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        words = network.get_input_embeddings().get_parameter("weight")
        words[:, : table.shape[1]] = table / table.std() * 0.1
    return network


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Whole words in lower case."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return wrapped(tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNK)


def mixed_batches(batch: Batch, generator: Generator) -> Iterator[Batch]:
    """Batches of texts of similar length, in random order."""
    noise = torch.rand(len(batch), generator=generator) * 4
    order = (batch.lengths + noise).argsort()
    parts = torch.split(order, BATCH)
    for number in torch.randperm(len(parts), generator=generator).tolist():
        yield batch.rows(parts[number])


def drop_words(batch: Batch, generator: Generator) -> Tensor:
    """The ids with some words of the texts replaced by padding, so that texts without words are no surprise."""
    dropped = (torch.rand(batch.mask.shape, generator=generator) < WORD_DROPOUT) & batch.content_mask
    return batch.inputs.masked_fill(dropped, SPECIAL.index(PAD))


def last_logits(network: GPT2LMHeadModel, batch: Batch, ids: Tensor) -> Tensor:
    """Logits of all words `[batch word]` behind the prompt."""
    places = batch.lengths - 1
    states = network.transformer(input_ids=ids, attention_mask=batch.mask.long()).last_hidden_state
    logits: Tensor = network.lm_head(states[torch.arange(len(batch)), places])
    return logits


@torch.no_grad()
def accuracy(network: GPT2LMHeadModel, batch: Batch, labels: Tensor) -> float:
    """The share of texts whose own label word is likelier than the other."""
    nn.Module.train(network, mode=False)
    right = 0
    for rows in torch.split(torch.arange(len(batch)), 256):
        part = batch.rows(rows)
        assert part.labels is not None
        right += int((last_logits(network, part, part.inputs)[:, labels].argmax(1) == part.labels).sum())
    return right / len(batch)


if __name__ == "__main__":
    main()
