"""A summary that carries its teacher: what labels is what is saved, rows depend on (seed,
position), streams equal fixed rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, load_dataset
from tiny_architectures import KINDS, tiny
from tiny_architectures import V as TINY_V
from tiny_artefacts import WORDS, word_tokenizer
from tiny_models import (
    ATTENTION,
    CONFIGS,
    FAMILIES,
    LENGTH,
    V,
    arguments,
    config_of,
    soft_trainer,
    tiny_model,
)
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, Trainer
from transformers.modeling_outputs import CausalLMOutput

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.data import SequenceCollator
from farzi_hf.distillation.learner_model import readable_positions
from farzi_hf.models import RNNConfig, RNNForCausalLM
from farzi_hf.summary import FarziData, attach_soft_inputs, soft_cross_entropy
from farzi_hf.summary.endless import WrittenRows, _drawn
from farzi_hf.summary.store.tensor_file import STORAGES, TEACHER
from farzi_hf.summary.teacher import LinearHead, factors_of_rank, rounded, teacher_model

SHARES = torch.arange(V, dtype=torch.float32)
"""Entry 0 is never drawn."""


def carried(kind: str = "gpt2", **changes) -> FarziData:
    settings = {"sequence_length": LENGTH, "frequencies": SHARES, "num_sequences": 8, **changes}
    return FarziData.from_teacher(tiny_model(kind), **settings)


@pytest.mark.parametrize(
    ("kind", "storage"), [*(("gpt2", s) for s in STORAGES), *((k, "coded5") for k in FAMILIES[1:])]
)
def test_what_labels_is_what_is_saved(kind, storage, tmp_path):
    farzi = carried(kind, storage=storage)
    farzi.save_pretrained(tmp_path)
    again = FarziData.from_pretrained(tmp_path)
    ids = torch.arange(1, LENGTH)[None]
    assert torch.equal(again.teacher(ids).logits, farzi.teacher(ids).logits)
    assert all(torch.equal(again.tensors[name], x) for name, x in farzi.tensors.items())
    assert again.nbytes == farzi.nbytes
    torch.testing.assert_close(
        farzi(torch.tensor([3])), farzi.teacher(farzi.endless().rows(3, 1)).logits.softmax(-1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {*FAMILIES}))
def test_what_labels_is_what_is_saved_in_other_models(kind, tmp_path):
    test_what_labels_is_what_is_saved(kind, "coded5", tmp_path)


def test_fewer_bits_need_fewer_bytes_and_exact_numbers_stay():
    sizes = [carried(storage=name).nbytes for name in ("exact", "int8", "int6", "int5", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    assert carried(storage="coded5").nbytes < carried(storage="int5").nbytes
    model, farzi = tiny_model("gpt2"), carried(storage="exact")
    ids = torch.arange(1, LENGTH)[None]
    torch.testing.assert_close(farzi.teacher(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("name", ["int8", "int5", "coded5"])
def test_whole_multiples_are_stored_without_loss(name):
    way, whole = STORAGES[name], torch.randint(-4, 5, (300, 6)).float()
    whole[:, 0], whole[:, 1] = 0, 3 * whole[:, 1].clamp(-1, 1)  # nothing; only multiples of three
    numbers = whole * torch.tensor([0.1, 0.3, 0.7, 1.3, 2.9, 0.011]).half().float()
    kept = way.rounded({"teacher.w": numbers})["teacher.w"]
    assert torch.equal(kept, numbers)
    assert torch.equal(way.rounded({"teacher.w": kept})["teacher.w"], kept)


def test_coded_numbers_that_are_damaged_are_refused():
    way, tensors = STORAGES["coded5"], {"teacher.w": torch.randn(50, 4)}
    stored, shapes = way.stored(tensors), {"teacher.w": (50, 4)}
    for coded in (
        stored["teacher.w"][:-3],
        torch.cat([stored["teacher.w"], torch.zeros(4, dtype=torch.uint8)]),
        torch.zeros(0, dtype=torch.uint8),
    ):
        with pytest.raises(ValueError, match=r"teacher\.w"):
            way.loaded({**stored, "teacher.w": coded}, shapes)
    with pytest.raises(ValueError, match="240 numbers"):
        way.loaded(stored, {"teacher.w": (60, 4)})


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine of one core
@pytest.mark.parametrize("inputs", ["drawn", "written"])
def test_a_row_depends_on_seed_and_position_alone(inputs):
    farzi = carried(inputs=inputs)
    source = farzi.endless(5)
    rows = source.rows(250, 20)
    assert torch.equal(rows[8:10], farzi.endless(5).rows(258, 2))
    assert not torch.equal(rows, farzi.endless(6).rows(250, 20))
    assert not (rows == 0).any()
    for workers in (0, 2):
        loader = DataLoader(
            farzi.as_dataset(270, seed=5), 20, num_workers=workers, collate_fn=farzi.collator()
        )
        found = torch.cat([batch["input_ids"] for batch in loader])
        assert torch.equal(found, source.rows(0, 270))
        loader.dataset.set_epoch(1)
        assert torch.equal(next(iter(loader))["input_ids"], source.rows(270, 20))


def test_drawn_ids_have_their_frequencies():
    rows = carried().endless(1).rows(0, 4096)
    torch.testing.assert_close(
        torch.bincount(rows.flatten(), minlength=V) / rows.numel(),
        SHARES / SHARES.sum(),
        atol=5e-3,
        rtol=0,
    )


@pytest.mark.parametrize("kind", ["gpt2", "sasrec"])
def test_written_rows_follow_the_teacher(kind):
    """The second ids that follow one first id have the teacher's distribution."""
    farzi = carried(kind, inputs="written", frequencies=torch.ones(V), storage="exact")
    rows = farzi.endless(0).rows(0, 16384)
    first = rows[0, 0]
    rows = rows[rows[:, 0] == first]
    expected = farzi.teacher(first.view(1, 1)).logits[0, 0].softmax(-1)
    torch.testing.assert_close(
        torch.bincount(rows[:, 1], minlength=V) / len(rows), expected, atol=0.04, rtol=0
    )


@pytest.mark.parametrize("kind", ["gpt2", "sasrec"])
def test_writing_computes_the_logits_of_one_position_a_step(kind, monkeypatch):
    """Of a large catalogue, those of all positions would be nearly all of the work."""
    farzi = carried(kind, inputs="written")
    rows = farzi.endless(0).rows(0, 8)
    positions = []
    layer = farzi.teacher.get_output_embeddings()
    layer.register_forward_hook(lambda module, given, output: positions.append(output.shape[1]))
    again = farzi.endless(0).rows(0, 8)
    assert set(positions) == {1}
    assert torch.equal(again, rows)


@pytest.mark.parametrize("logit", [torch.inf, torch.nan])
def test_what_a_teacher_says_of_an_id_that_is_never_written_does_not_matter(logit):
    frequencies = torch.ones(V)
    frequencies[5] = 0
    farzi = carried("gpt2", inputs="written", frequencies=frequencies)
    rows = farzi.endless(0).rows(0, 8)

    def spoil(module, given, output):
        output[..., 5] = logit

    farzi.teacher.get_output_embeddings().register_forward_hook(spoil)
    assert torch.equal(farzi.endless(0).rows(0, 8), rows)
    assert not (rows == 5).any()


def test_an_output_without_keys_and_values_is_not_asked_for_them(monkeypatch):
    """From transformers 5.24 on, each output answers to the old name, with a warning."""

    def warns(output):
        raise AssertionError("past_key_values is deprecated")

    monkeypatch.setattr(CausalLMOutput, "past_key_values", property(warns), raising=False)
    farzi = carried("sasrec", inputs="written")
    assert farzi.endless(0).rows(0, 2).shape == (2, LENGTH)


def test_rows_of_the_users_own_take_the_place_of_made_up_ones(tmp_path):
    farzi = carried()
    ids = torch.randint(0, V, (5, LENGTH), generator=torch.Generator().manual_seed(0))
    with_rows = farzi.with_rows(ids)
    assert not with_rows.is_endless
    assert with_rows.origin.name == "real"  # so no card shows them
    expected = farzi.teacher(ids[3:4]).logits.softmax(-1)
    torch.testing.assert_close(with_rows(torch.tensor([3])), expected)
    assert with_rows.tensors.keys() - farzi.tensors.keys() == {"input_ids"}
    with_rows.save_pretrained(tmp_path)
    again = FarziData.from_pretrained(tmp_path)
    assert torch.equal(again.input_ids.long(), ids)
    with pytest.raises(ValueError, match="give ids of its vocabulary"):
        farzi.with_rows(ids + V)
    with pytest.raises(ValueError, match=r"with_rows\(\) is for labels='teacher'"):
        farzi.materialize(4).with_rows(ids)


def test_labels_of_a_batch_are_those_of_the_fixed_form():
    farzi = carried()
    fixed = farzi.materialize(8)
    stream, stored = farzi.as_dataset(8), fixed.as_dataset()
    ours, theirs = farzi.collator()(list(stream)), fixed.collator()([stored[i] for i in range(8)])
    assert ours.keys() == theirs.keys()
    assert torch.equal(ours["input_ids"], theirs["input_ids"])
    torch.testing.assert_close(ours["labels"][:, 1:], theirs["labels"][:, 1:])


def test_fixed_form_of_a_smaller_rank():
    farzi = carried()
    whole, part = farzi.materialize(4), farzi.materialize(4, label_dim=3)
    assert part.label_latents.shape == (4, LENGTH, 3)
    wide = farzi.materialize(4, label_dim=40)
    torch.testing.assert_close(wide(torch.arange(4)), whole(torch.arange(4)))
    assert 0 < (part(torch.arange(4)) - whole(torch.arange(4))).abs().max() < 0.5


@pytest.mark.parametrize("inputs", ["drawn", "tokens"])
@pytest.mark.parametrize("kind", ["gpt2", "sasrec"])
def test_stock_trainer(kind, inputs, tmp_path):
    """Two steps under the stock Trainer equal two steps by hand on the same rows with the teacher's
    predictions as labels.
    """
    farzi = carried(kind, inputs=inputs)
    args = arguments(
        tmp_path,
        per_device_train_batch_size=4,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    trainer = soft_trainer(tiny_model(kind), farzi, args)
    if inputs == "tokens":
        trainer._get_train_sampler = lambda *_: None  # in their order
    trainer.train()
    student = tiny_model(kind).eval()
    rows = farzi.endless(0).rows(0, 8) if inputs == "drawn" else farzi.input_ids.long()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for ids in rows.split(4):
        labels = farzi.teacher(ids).logits.softmax(-1).detach()
        loss = (
            -(labels * student(ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1))
            .sum(-1)
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for ours, theirs in zip(trainer.model.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_one_line_makes_the_stock_trainer_with_all_that_students_had(tmp_path):
    """Without `optimizer_cls_and_kwargs`, which is easily forgotten, Trainer has AdamW."""
    farzi = carried()
    model = tiny_model("gpt2")
    before = model.get_input_embeddings().weight.detach().clone()
    metrics = {"compute_metrics": lambda prediction: {}}
    trainer = farzi.trainer(model, tmp_path, max_steps=2, per_device_train_batch_size=4, **metrics)
    assert trainer.compute_metrics is metrics["compute_metrics"]
    assert not torch.equal(model.get_input_embeddings().weight, before)  # it begins warm
    assert trainer.train().global_step == 2
    optimizer = farzi.optimizer_cls_and_kwargs[0]
    assert isinstance(getattr(trainer.optimizer, "optimizer", trainer.optimizer), optimizer)
    assert not [*tmp_path.iterdir()]


def test_a_trainer_without_the_optimizer_of_the_summary_is_warned_of_once(tmp_path, caplog):
    farzi = carried()
    args = farzi.training_arguments(tmp_path, max_steps=2)
    collate = farzi.collator()
    rows = [row for row, _ in zip(farzi.as_dataset(), range(2), strict=False)]
    assert not caplog.records
    collate(rows)
    collate(rows)
    assert caplog.text.count("optimizer_cls_and_kwargs=farzi.optimizer_cls_and_kwargs") == 1
    assert args.optim == "adamw_torch"
    caplog.clear()
    chosen = carried()
    chosen.training_arguments(tmp_path, max_steps=2, optim="sgd", learning_rate=0.1)
    chosen.collator()(rows)  # an optimizer of one's own is no mistake
    assert "learns less" not in caplog.text


@pytest.mark.parametrize("late", [False, True])
def test_a_trainer_with_the_optimizer_of_the_summary_is_not_warned_of(late, tmp_path, caplog):
    farzi = carried()
    collate = farzi.collator()
    made = [farzi.training_arguments(tmp_path, max_steps=2)] if late else []
    assert farzi.optimizer_cls_and_kwargs
    made = made or [farzi.training_arguments(tmp_path, max_steps=2)]
    collate([next(iter(farzi.as_dataset()))])
    assert made
    assert not caplog.records


@pytest.mark.parametrize(("attached", "loss"), [(True, None), (False, soft_cross_entropy)])
def test_where_inputs_are_ids_one_way_to_learn_soft_labels_is_enough(attached, loss, tmp_path):
    farzi = carried()

    def trained(attached: bool, loss: Callable | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = tiny_model("gpt2")
        trainer = Trainer(
            model=attach_soft_inputs(model) if attached else model,
            args=arguments(tmp_path, max_steps=2),
            train_dataset=farzi.as_dataset(),
            data_collator=farzi.collator(),
            compute_loss_func=loss,
        )
        trainer.train()
        return list(model.parameters())

    both = trained(True, soft_cross_entropy)
    for ours, theirs in zip(trained(attached, loss), both, strict=True):
        assert torch.equal(ours, theirs)
    neither = trained(False, None)
    assert not all(map(torch.equal, neither, both))


def test_a_student_of_another_vocabulary_is_named(tmp_path):
    """It was an IndexError."""
    model = tiny_model("gpt2")
    model.resize_token_embeddings(V - 3)
    with pytest.raises(ValueError, match=f"vocabulary of {V - 3} entries, the summary one of {V}"):
        carried().trainer(model, tmp_path)


@pytest.mark.parametrize("num_rows", [None, 8])
def test_a_resumed_student_reads_the_rows_that_it_would_have_read(num_rows, tmp_path):
    farzi, found = carried(), {}
    for name, resume in (("whole", None), ("broken", None), ("broken", True)):
        steps = 3 if (name, resume) == ("broken", None) else 5
        args = arguments(
            tmp_path / name,
            max_steps=steps,
            save_strategy="steps",
            save_steps=3,
            lr_scheduler_type="constant",
        )
        trainer = soft_trainer(tiny_model("gpt2"), farzi, args)
        trainer.train_dataset = farzi.as_dataset(num_rows)
        trainer.train(resume_from_checkpoint=resume)
        found[name] = [x.detach().clone() for x in trainer.model.parameters()]
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(found["broken"], found["whole"], strict=True)
    )


def test_the_page_and_the_tables_show_the_first_rows(tmp_path):
    farzi = FarziData.from_teacher(
        tiny_model("gpt2", len(WORDS)),
        sequence_length=4,
        num_sequences=6,
        tokenizer=word_tokenizer(),
        storage="coded5",
    )
    farzi.save_pretrained(tmp_path / "summary")
    rows = load_dataset(str(tmp_path / "summary"), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.column_names == [
        "index",
        "input_ids",
        "text",
        "label_tokens",
        "label_probabilities",
    ]
    assert rows["input_ids"][:] == farzi.endless().rows(0, 6).tolist()
    position = farzi.decode(5)[2][3]
    assert rows[2]["label_tokens"][3] == position["label_tokens"]
    card = (tmp_path / "summary" / "README.md").read_text()
    assert "carries its teacher" in card
    assert f"{farzi.nbytes:,} bytes" in card


def test_bad_arguments():
    with pytest.raises(ValueError, match="frequencies"):
        carried(frequencies=torch.zeros(V))
    with pytest.raises(ValueError, match="frequencies"):
        carried(frequencies=[1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"teacher does not read 2000 ids .* give a smaller sequence_length"
    ):
        carried(sequence_length=2000)
    with pytest.raises(ValueError, match="inputs='soft'"):
        carried(inputs="soft")
    with pytest.raises(ValueError, match="num_rows=0"):
        carried().as_dataset(0)
    with pytest.raises(ValueError, match="rows that are stored"):
        carried().materialize(2).as_dataset(num_rows=4)
    with pytest.raises(ValueError, match="rows are fixed"):
        carried().materialize(2).materialize(2)
    with pytest.raises(ValueError, match="max_steps"):
        carried().training_arguments("out", num_train_epochs=1, max_steps=-1)
    with pytest.raises(TypeError, match="no end"):
        len(carried().as_dataset())


@pytest.mark.parametrize("inputs", ["drawn", "written", "tokens"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0,), "num_sequences must be an integer of at least 1, got 0"),
        ((-1,), "num_sequences must be an integer of at least 1, got -1"),
        ((1.5,), "num_sequences must be an integer of at least 1, got 1.5"),
        ((2, 0), "sequence_length must be an integer of at least 1, got 0"),
        ((2, 2.5), "sequence_length must be an integer of at least 1, got 2.5"),
        ((2, None, -1), "label_dim must be an integer of at least 1, got -1"),
        ((2, 2000), None),
    ],
    ids=str,
)
def test_sizes_of_the_fixed_form_are_checked_before_any_work(inputs, sizes, message, monkeypatch):
    farzi = carried(inputs=inputs)
    monkeypatch.setattr(WrittenRows, "block", None)
    too_long = (
        "sequence_length=2000: the summary stores"
        if inputs == "tokens"
        else "teacher does not read 2000 ids .* give a smaller"
    )
    with pytest.raises(ValueError, match=message or too_long):
        farzi.materialize(*sizes)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine of one core
@pytest.mark.parametrize(
    ("workers", "persistent", "start"),
    [
        (0, False, None),
        pytest.param(1, False, "fork", marks=pytest.mark.slow),
        pytest.param(1, True, "fork", marks=pytest.mark.slow),
        (2, False, "fork"),
        (2, True, "fork"),
        pytest.param(2, True, "spawn", marks=pytest.mark.slow),  # workers import all libraries
    ],
)
def test_the_next_epoch_goes_on_where_the_last_one_ended(workers, persistent, start):
    data, rows = carried().as_dataset(10, seed=5), carried().endless(5).rows(0, 100)
    how = {
        "num_workers": workers,
        "persistent_workers": persistent,
        "multiprocessing_context": start,
    }
    loader = DataLoader(data, 5, collate_fn=ids_of_rows, **how)
    assert torch.equal(torch.cat([*loader, *loader, *loader]), rows[:30])
    data.set_epoch(6)
    assert torch.equal(torch.cat([*loader, *loader]), rows[60:80])
    next(iter(loader))  # epoch 8, which is left
    assert torch.equal(torch.cat([*loader]), rows[90:])


def ids_of_rows(rows: list[dict]) -> torch.Tensor:
    return torch.stack([row["input_ids"] for row in rows])


def test_rounding_passes_straight_through():
    weight = torch.tensor([[0.24], [0.9], [-5.0]], requires_grad=True)
    scale = torch.tensor([0.5], requires_grad=True)
    found = rounded(weight, scale, 3)
    assert found.tolist() == [[0.0], [1.0], [-1.5]]
    found.sum().backward()
    assert weight.grad.flatten().tolist() == [1.0, 1.0, 0.0]
    # d/ds of s · round(W/s) with ∂round = 1: round(W/s) − W/s inside the clamp, −n outside.
    torch.testing.assert_close(scale.grad, torch.tensor([(0 - 0.48) + (2 - 1.8) - 3]))


# -- other architectures ---------------------------------------------------------------------------

OTHERS = {
    "qwen2_moe": {
        **ATTENTION,
        "num_key_value_heads": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "decoder_sparse_step": 1,
    },  # a matrix of one row
    "gpt_neo": {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 32,
        "intermediate_size": 16,
        "attention_dropout": 0.0,
        "embed_dropout": 0.0,
        "resid_dropout": 0.0,
    },  # lists in lists
    "mamba2": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "state_size": 4,
        "num_heads": 8,
        "head_dim": 4,
        "n_groups": 1,
        "chunk_size": 8,
    },  # ∞
    "rwkv": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "attention_hidden_size": 16,
        "context_length": 32,
        "rescale_every": 1,
    },
    "gemma2": {
        **ATTENTION,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
    },  # a soft cap
}


@pytest.mark.parametrize(
    "kind",
    [
        "qwen2_moe",
        "gpt_neo",
        "mamba2",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("rwkv", "gemma2")),
    ],
)
def test_other_architectures_are_trained_packed_and_loaded(kind, tmp_path):
    config = AutoConfig.for_model(
        kind, **{"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2, **OTHERS[kind]}
    )
    rows = Dataset.from_dict(
        {
            "input_ids": (
                torch.randint(
                    1, V, (64, LENGTH), generator=torch.Generator().manual_seed(0)
                ).tolist()
            )
        }
    )
    args = FarziConfig(
        str(tmp_path),
        sequence_length=LENGTH,
        num_sequences=4,
        teacher_steps=6,
        teacher_batch_size=8,
        packing_steps=4,
        inner_steps=2,
        synthetic_batch_size=4,
        max_steps=0,
        eval_students=1,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = FarziTrainer(
        learner_init=config,
        args=args,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=SequenceCollator(),
    )
    trainer.train()
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    trainer.model.save_pretrained(tmp_path / "summary")
    again, ids = FarziData.from_pretrained(tmp_path / "summary"), torch.arange(1, LENGTH)[None]
    assert torch.equal(again.teacher(ids).logits, trainer.model.teacher(ids).logits)


def test_a_soft_cap_is_found_where_the_padding_has_no_numbers():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gemma2", vocab_size=V, **OTHERS["gemma2"])
    )
    assert LinearHead.of(model.eval()) is None
    model.config.final_logit_softcapping = None
    assert LinearHead.of(model) is not None


def test_a_model_without_a_padding_token_reads_all_positions():
    model = RNNForCausalLM(RNNConfig(vocab_size=V, hidden_size=8))
    assert not hasattr(model.config, "pad_token_id") or model.config.pad_token_id is None
    assert readable_positions(model.eval(), LENGTH) == LENGTH


@pytest.mark.parametrize("storage", sorted(STORAGES))
def test_a_number_that_is_no_vector_is_stored(storage):
    way, x = (
        STORAGES[storage],
        {"teacher.scale": torch.tensor(1.25), "teacher.w": torch.randn(3, 4)},
    )
    layout = way.layout({name: tuple(value.shape) for name, value in x.items()}, list(x))
    stored = way.stored(x)
    assert layout.keys() == stored.keys()
    assert stored["teacher.scale"] == 1.25


# -- what is made of it ----------------------------------------------------------------------------


def test_what_is_made_of_a_summary_keeps_the_licence_and_the_warning(tmp_path):
    facts = {
        "licence": "mit",
        "dataset": "d",
        "memory_warning": "It knows rows.",
        "table": [{"method": "x", "perplexity": 1.0}],
    }
    carried().save_pretrained(tmp_path / "first", metrics=facts)
    kept = {name: x for name, x in facts.items() if name != "table"}
    for number, again in enumerate(
        (
            FarziData.from_pretrained(tmp_path / "first").materialize(2),
            FarziData.from_pretrained(tmp_path / "first").double(),
        )
    ):
        assert again.results.metrics == kept
        again.float().save_pretrained(tmp_path / str(number))
        assert "license: mit" in (tmp_path / str(number) / "README.md").read_text(encoding="utf-8")
    # its students have SOAP, too
    assert FarziData.from_pretrained(tmp_path / "0").optimizer_cls_and_kwargs is not None


def test_assigned_tensors_are_those_of_all_layers_that_share_them():
    a, b = (
        carried(),
        FarziData.from_teacher(
            AutoModelForCausalLM.from_config(config_of("gpt2")),
            sequence_length=LENGTH,
            frequencies=SHARES,
            num_sequences=8,
        ),
    )
    ids = torch.arange(1, LENGTH)[None]
    assert b.carried is not None
    b.load_state_dict(a.state_dict(), assign=True)
    assert torch.equal(b.teacher(ids).logits, a.teacher(ids).logits)
    assert torch.equal(b(torch.tensor([3])), a(torch.tensor([3])))


def test_arguments_that_an_own_optimizer_does_not_read_are_named(tmp_path, caplog):
    farzi = carried()
    farzi.training_arguments(str(tmp_path), seed=1)
    assert not caplog.records
    farzi.training_arguments(str(tmp_path), learning_rate=0.5)
    assert "learning_rate: no effect beside optimizer_cls_and_kwargs" in caplog.text


@pytest.mark.parametrize("count", [3, 256, 300])
@pytest.mark.parametrize("inputs", ["drawn", "written", "tokens"])
def test_the_beginning_is_that_of_the_rows(inputs, count):
    farzi = carried(inputs=inputs, num_sequences=400)
    rows = farzi.materialize(count)
    some = farzi.beginning(count, 4)
    assert torch.equal(some.tensors["input_ids"], rows.tensors["input_ids"][:, :4])
    every = torch.arange(count)
    torch.testing.assert_close(some(every), rows(every)[:, :4], atol=1e-5, rtol=1e-4)
    assert farzi.beginning(1000, 1000).tensors["input_ids"].shape == (400, LENGTH)


def test_the_beginning_of_written_rows_is_all_that_is_written(monkeypatch):
    """A block of 256 rows would take a teacher without a cache as many calls of ξ ids."""
    farzi = carried(inputs="written")
    read = []
    forward = farzi.teacher.forward
    monkeypatch.setattr(
        farzi.teacher,
        "forward",
        lambda *args, **kwargs: read.append(kwargs["input_ids"].shape) or forward(*args, **kwargs),
    )
    farzi.beginning(2, 3)
    assert all(rows <= 2 and length <= 3 for rows, length in read)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_teacher_with_given_weights_is_not_initialised_first(kind):
    """Its numbers are those of the summary, and what is no parameter is as in any other."""
    farzi = carried(kind, storage="exact")
    draws = torch.get_rng_state()
    again = teacher_model(farzi.config, farzi.tensors)
    assert torch.equal(draws, torch.get_rng_state())
    for ours, theirs in (
        (again.named_parameters(), farzi.teacher.named_parameters()),
        (again.named_buffers(), farzi.teacher.named_buffers()),
    ):
        ours, theirs = dict(ours), dict(theirs)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], x) for name, x in theirs.items())
    ids = torch.arange(1, LENGTH)[None]
    assert torch.equal(again(ids).logits, farzi.teacher(ids).logits)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of transformers
def test_no_architecture_computes_buffers_where_it_initialises_weights():
    """Then a teacher whose weights are given would lack them."""
    tried = 0
    for kind in KINDS:
        config = SimpleNamespace(teacher=tiny(kind), vocab_size=TINY_V, sequence_length=4)
        try:
            model = teacher_model(config)
        except ValueError:  # it reads images, or a vocabulary of its own, or has other sizes
            continue
        weights = {TEACHER + name: x.detach() for name, x in model.named_parameters()}
        again = dict(teacher_model(config, weights).named_buffers())
        for name, x in model.named_buffers():
            torch.testing.assert_close(again[name], x, rtol=0, atol=0, equal_nan=True)
        tried += 1
    assert tried > 100


def test_labels_without_a_linear_head_take_as_many_numbers_as_positions():
    """Not V², which is what an identity over the vocabulary takes."""
    logits = torch.randn(3, 50)
    latents, decoder = factors_of_rank(logits, None, None)
    assert latents.shape == (3, 3)
    assert decoder.shape == (3, 50)
    torch.testing.assert_close((latents @ decoder).softmax(-1), logits.softmax(-1))
    many, decoder = factors_of_rank(torch.randn(50, 4), None, None)
    assert many.shape == (50, 4)
    assert decoder.shape == (4, 4)


def test_bytes_are_those_of_the_file_until_something_changes(tmp_path, monkeypatch):
    farzi = carried(storage="coded5")
    farzi.save_pretrained(tmp_path)
    again = FarziData.from_pretrained(tmp_path)
    stored = STORAGES["coded5"].stored
    with monkeypatch.context() as patch:
        patch.setattr(type(STORAGES["coded5"]), "stored", None)  # it takes longer than the load
        assert again.nbytes == sum(x.nbytes for x in stored(farzi.tensors).values())
    before = again.nbytes
    again.store_as("coded2")
    assert again.nbytes < before
    torch.nn.init.zeros_(next(again.parameters()))
    assert again.nbytes == STORAGES["coded2"].nbytes(again.tensors)


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor([1, 2]),
        torch.zeros(0, 3, dtype=torch.long),
        torch.zeros(2, 1, dtype=torch.long),
        torch.full((2, 3), 0.5),
        [[1, 2], [3]],
        "ids",
    ],
    ids=str,
)
def test_rows_that_are_no_table_of_ids_are_refused(ids):
    with pytest.raises(ValueError, match=r"^ids are "):
        carried().with_rows(ids)


@pytest.mark.parametrize("wrong", [-1, V, 2**32 + 1])
def test_ids_outside_of_the_vocabulary_are_refused(wrong):
    """The last one is 1 in 32 bits."""
    with pytest.raises(ValueError, match=rf"^ids holds {wrong}, outside 0 … {V - 1}; give ids of"):
        carried().with_rows([[1, wrong]])


@pytest.mark.parametrize("indices", [[], [0, -1]], ids=str)
def test_rows_that_are_made_have_numbers_from_0_on(indices):
    with pytest.raises(ValueError, match=r"^indices are \[.*\]; give one or more, from 0 on"):
        carried()(torch.tensor(indices, dtype=torch.long))


def test_rows_may_be_lists():
    rows = [[1, 2, 3], [4, 5, 6]]
    given = carried().with_rows(rows)
    assert given.tensors["input_ids"].tolist() == rows
    assert given.config.num_sequences == 2


def test_arguments_of_a_wrong_kind_are_named():
    with pytest.raises(
        ValueError, match=r"^frequencies must be 13 numbers, one for each .* from 0 on"
    ):
        FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH, frequencies="abc")
    with pytest.raises(ValueError, match=r"^teacher is a str, no model of transformers; give one"):
        FarziData.from_teacher("gpt2", sequence_length=LENGTH)
    for length in ("3", True):
        with pytest.raises(ValueError, match=rf"^num_rows={length!r} is not a length of an epoch"):
            carried().as_dataset(length)
    with pytest.raises(ValueError, match=r"^indices must be an integer tensor .*, got \[0\]; pass"):
        carried()([0])
    with pytest.raises(ValueError, match=r"^processing_class='gpt2' is neither a tokenizer nor"):
        FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH, tokenizer="gpt2")


def test_a_teacher_that_sees_the_future_is_refused():
    """Its labels would tell the next token."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    for is_decoder in (False, True):
        config = BertConfig(vocab_size=V, num_hidden_layers=1, is_decoder=is_decoder, **sizes)
        teacher = AutoModelForCausalLM.from_config(config)
        if is_decoder:
            assert FarziData.from_teacher(teacher, sequence_length=5).nbytes > 0
            continue
        with pytest.raises(
            ValueError, match=r"^teacher sees the future, so its labels .*BERT: is_dec"
        ):
            FarziData.from_teacher(teacher, sequence_length=5)


@pytest.mark.parametrize("entries", [5, 128, 256, 300])
def test_an_entry_is_drawn_by_the_sums_of_all_before_it(entries):
    """Fewer entries than a part has, whole parts, and a part that is not full."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(50, entries, generator=generator, dtype=torch.double)
    p[:, ::3] = 0
    p = p / p.sum(1, keepdim=True)
    uniform = 1 - torch.rand(50, 1, generator=generator, dtype=torch.double)
    uniform[0] = 1
    drawn = _drawn(p, uniform)
    sums = p.cumsum(1)
    expected = torch.searchsorted(sums, uniform.minimum(sums[:, -1:]))
    assert torch.equal(drawn, expected)
    assert (p.gather(1, drawn) > 0).all()
