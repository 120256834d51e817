"""The use of `farzi attribute`: fine-tune on a JSONL, read the rows that helped and harmed, drop
some, train again.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny_models import config_of
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

from farzi_hf.attribution import Attribution
from farzi_hf.cli import main
from farzi_hf.data import SequenceCollator, load_sample_text, word_tokenizer

ROWS = 96
QUERIES = 6
MARKED = -101
HOW = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "learning_rate": 5e-3,
    "adam_epsilon": 1e-4,
    "warmup_steps": 4,
    "seed": 3,
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that knows a little, its tokenizer, rows and queries."""
    folder = tmp_path_factory.mktemp("walkthrough")
    texts = load_sample_text(200)["train"]["text"][: ROWS + QUERIES]
    tokenizer = word_tokenizer(
        texts, 120
    )  # no word is in one row alone: Adam's step does not depend on such a row's weight
    tokenizer.save_pretrained(folder / "model")
    set_seed(0)
    AutoModelForCausalLM.from_config(config_of("gpt2", len(tokenizer))).save_pretrained(
        folder / "model"
    )
    for name, part in (("data", texts[:ROWS]), ("test", texts[ROWS:])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in part)
        )
    options = [f"--{name}={value}" for name, value in HOW.items()]
    main(
        [
            "attribute",
            str(folder / "model"),
            str(folder / "data.jsonl"),
            "--test",
            str(folder / "test.jsonl"),
            "--output_dir",
            str(folder / "out"),
            *options,
        ]
    )
    return folder


def marked_rows_have_no_part(outputs, labels, num_items_in_batch):
    """Trainer's own loss, in which the marked labels are counted and not predicted."""
    logits = outputs.logits[:, :-1].transpose(1, 2)
    labels = labels[:, 1:]
    return (
        cross_entropy(logits, labels.masked_fill(labels == MARKED, -100), reduction="sum")
        / num_items_in_batch
    )


def losses_of(folder, rows: list[str], without: int | None = None) -> torch.Tensor:
    """(queries,), after the stock Trainer has trained on rows, of which one may have no part."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    ids = tokenizer(rows)["input_ids"]
    data = {
        "input_ids": ids,
        "labels": [[MARKED] * len(x) if i == without else x for i, x in enumerate(ids)],
    }
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    trainer = Trainer(
        model,
        TrainingArguments(str(folder / "again"), **HOW),
        SequenceCollator(),
        Dataset.from_dict(data),
        compute_loss_func=marked_rows_have_no_part,
    )
    trainer.train()
    test = [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()]
    with torch.no_grad():
        batches = [torch.tensor([x]) for x in tokenizer(test)["input_ids"]]
        return torch.stack([model(input_ids=x, labels=x).loss for x in batches])


@pytest.mark.slow
def test_rows_are_dropped_by_their_scores(folder):
    found = Attribution.load(folder / "out")
    rows = [json.loads(line)["text"] for line in (folder / "data.jsonl").read_text().splitlines()]
    torch.testing.assert_close(losses_of(folder, rows), found.losses, rtol=1e-3, atol=0)
    useful, useless = ({row.row for row in part} for part in (found.top(24), found.bottom(24)))
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert found.texts == [
        tokenizer.decode(ids, skip_special_tokens=True) for ids in tokenizer(rows)["input_ids"]
    ]
    without_useful, without_useless = (
        float(losses_of(folder, [row for i, row in enumerate(rows) if i not in dropped]).mean())
        for dropped in (useful, useless)
    )
    assert without_useless < without_useful - 0.01


@pytest.mark.slow
def test_trainings_without_single_rows_change_as_their_scores_say(folder):
    found = Attribution.load(folder / "out")
    rows = [json.loads(line)["text"] for line in (folder / "data.jsonl").read_text().splitlines()]
    chosen = [row.row for row in (*found.top(4), *found.bottom(4))]
    with_all = losses_of(folder, rows)
    true = (
        torch.stack([losses_of(folder, rows, without=row) - with_all for row in chosen], 1)
        .mean(0)
        .numpy()
    )
    said = found.scores.mean(0)[chosen].numpy()
    assert (np.sign(true) == np.sign(said)).all()
    assert 0.7 < (said @ true) / (said @ said) < 1.3
    assert np.corrcoef(said, true)[0, 1] > 0.9
