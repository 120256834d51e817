"""How students begin: the start that a summary names is the one that they have, wherever they
train.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import torch
from tiny_artefacts import INNER, WORDS, word_tokenizer
from tiny_models import ATTENTION, LENGTH, NEXT_ITEM, V, config_of, tiny_model, tiny_summary
from transformers import AutoModelForCausalLM, BertConfig, Trainer

from farzi_hf.cli import main
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.distillation.inner_training import Students
from farzi_hf.summary import (
    FarziData,
    FarziDataConfig,
    attach_soft_inputs,
    narrower,
    soft_cross_entropy,
)
from farzi_hf.summary import student_starts as starts
from farzi_hf.summary.start import Tables, maps_between
from farzi_hf.summary.student_starts import STUDENT_STARTS, start_of

INNER_OF_TEACHER = {**INNER, "steps": 3, "synthetic_batch_size": 4}
LLAMA = json.dumps({"model_type": "llama", **ATTENTION})
TABLES = ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.fixture(autouse=True)
def few_positions(monkeypatch):
    """A quarter of the positions that are read by default, enough for such small models."""
    monkeypatch.setattr(narrower, "_POSITIONS", 2**12)


def carrier(start: str | None = "teacher", kind: str = "gpt2", entries: int = V) -> FarziData:
    """A summary that carries a teacher; None: its settings do not say how students begin."""
    farzi = FarziData.from_teacher(tiny_model(kind, entries), sequence_length=LENGTH)
    said = {} if start is None else {"student_start": start}
    farzi.config.inner = {**INNER_OF_TEACHER, **said}
    return farzi


def students_of(farzi: FarziData, learner_init=None) -> Students:
    """By default students have tables alone: an MLP of theirs is not made of a GPT-2's."""
    alone = config_of("llama", hidden_act="gelu")
    learner = Learner(alone if learner_init is None else learner_init)
    training = SyntheticTraining.of(farzi.config.inner, farzi.forms)
    return Students(learner, farzi, training, 3, 7, quiet=True)


# -- the setting -----------------------------------------------------------------------------------


def test_a_summary_that_is_made_of_a_teacher_names_a_start():
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    assert farzi.config.inner["student_start"] in STUDENT_STARTS
    assert farzi.student_start is STUDENT_STARTS[farzi.config.inner["student_start"]]


def test_a_summary_of_before_begins_at_random():
    assert carrier(None).student_start is STUDENT_STARTS["random"]
    assert tiny_summary().student_start is STUDENT_STARTS["random"]


def test_the_setting_is_saved_and_loaded(tmp_path):
    carrier("teacher").save_pretrained(tmp_path)
    assert FarziData.from_pretrained(tmp_path).student_start is STUDENT_STARTS["teacher"]


@pytest.mark.parametrize("name", ["warm", "", None, 3, ["teacher"], {"teacher": 1}])
def test_an_unknown_start_is_refused(name):
    with pytest.raises(ValueError, match=r"config\.inner\['student_start'\]=.* is none of random"):
        start_of({"student_start": name}, carries_teacher=True)


def test_a_summary_without_a_teacher_has_no_warm_start():
    with pytest.raises(ValueError, match=r"'student_start'\]='teacher', but the summary carries"):
        FarziDataConfig(inner={"student_start": "teacher"})


def test_rows_that_are_fixed_do_not_name_the_start_of_their_source():
    fixed = carrier("teacher").materialize(4)
    assert "student_start" not in fixed.config.inner
    assert fixed.student_start is STUDENT_STARTS["random"]


# -- students of an evaluation ---------------------------------------------------------------------


def test_a_warm_student_differs_from_a_random_one_in_the_tables_alone():
    fresh = students_of(carrier("random")).beginning(5)[0]
    warm = students_of(carrier("teacher")).beginning(5)[0]
    changed = [name for name in fresh if not torch.equal(fresh[name], warm[name])]
    assert changed == TABLES
    model = AutoModelForCausalLM.from_config(config_of("llama", hidden_act="gelu"))
    carrier().start(model)
    for name in TABLES:
        torch.testing.assert_close(warm[name], model.get_parameter(name).detach())


def test_students_are_trained_from_there():
    students = students_of(carrier("teacher"))
    start = students.beginning(starts_seed := 11)[0]
    with torch.no_grad():
        by_hand = students.training(
            students.learner, students.farzi.tensors, start=start, steps=3, seed=starts_seed
        )
    assert not any(torch.equal(by_hand[name], start[name]) for name in TABLES)
    random_student = students_of(carrier("random")).on_summary(0)
    assert not torch.equal(students.on_summary(0)["lm_head.weight"], random_student[TABLES[1]])


def test_the_same_student_after_saving_and_loading(tmp_path):
    farzi = carrier("teacher")
    with_layers = config_of("llama")
    before = students_of(farzi, with_layers).on_summary(1)
    farzi.save_pretrained(tmp_path)
    after = students_of(FarziData.from_pretrained(tmp_path), with_layers).on_summary(1)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_that_are_not_drawn_are_kept():
    """Those of a pretrained model."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(1.0)
    students = students_of(carrier("teacher"), lambda: model)
    for name, x in students.beginning(3)[0].items():
        assert torch.equal(x, model.get_parameter(name))


def test_parameters_that_do_not_train_are_kept():
    def learner_init():
        model = AutoModelForCausalLM.from_config(config_of("llama"))
        model.lm_head.weight.requires_grad_(False)
        return model

    fresh = students_of(carrier("random"), learner_init).beginning(5)[0]
    warm = students_of(carrier("teacher"), learner_init).beginning(5)[0]
    changed = [name for name in fresh if not torch.equal(fresh[name], warm[name])]
    assert TABLES[0] in changed
    assert TABLES[1] not in changed


def test_students_have_the_type_of_their_learner():
    farzi = carrier("teacher").double()
    students = students_of(
        farzi, lambda: AutoModelForCausalLM.from_config(config_of("llama")).double()
    )
    assert {x.dtype for x in students.beginning(0)[0].values()} == {torch.float64}


@pytest.mark.parametrize("kind", NEXT_ITEM)
def test_recommenders_begin_with_the_teachers_items(kind):
    farzi = carrier("teacher", "fmlp")
    fresh, warm = (
        students_of(each, config_of(kind)).beginning(5)[0]
        for each in (carrier("random", "fmlp"), farzi)
    )
    assert not torch.equal(fresh["embedding.weight"], warm["embedding.weight"])


def test_another_vocabulary_is_an_error():
    students = students_of(carrier("teacher"), config_of("llama", V + 1))
    with pytest.raises(ValueError, match=r"^model has a vocabulary of 14 entries, the summary one"):
        students.on_summary(0)


# -- their learning rate ---------------------------------------------------------------------------

SHARES_OF_RATE = [
    ("gpt2", {}, 1.0),  # the teacher itself, whose layers are not set
    ("gpt2", {"n_layer": 2}, 0.25),
    ("gpt2", {"n_embd": 24, "tie_word_embeddings": False}, 0.25),
    ("gpt2", {"n_embd": 8, "tie_word_embeddings": False}, 1.0),  # narrower
    ("gpt2", {"n_embd": 24, "n_head": 1, "tie_word_embeddings": False}, 1.0),  # they do not fit
    ("gpt_neox", {"use_parallel_residual": False}, 0.25),
    ("gpt_neox", {}, 1.0),  # its MLPs have something to learn
]


@pytest.mark.parametrize(("kind", "changes", "share"), SHARES_OF_RATE)
def test_students_as_wide_as_the_teacher_with_its_layers_take_a_part_of_the_rate(
    kind, changes, share
):
    students = students_of(carrier("teacher"), config_of(kind, **changes))
    seed = derive(students.seed, Purpose.EVALUATION_STUDENT, 0)
    training = replace(
        students.training,
        optimizer=replace(students.training.optimizer, lr=share * INNER_OF_TEACHER["lr"]),
    )
    with torch.no_grad():
        by_hand = training(
            students.learner,
            students.farzi.tensors,
            start=students.beginning(seed)[0],
            steps=3,
            seed=seed,
        )
    found = students.on_summary(0)
    assert all(torch.equal(found[name], by_hand[name]) for name in found)


WITH_SOAP = [(*case, "soap") for case in SHARES_OF_RATE]


@pytest.mark.parametrize(
    ("kind", "changes", "share", "optimizer"),
    [
        *((*case, "adam") for case in SHARES_OF_RATE),
        *WITH_SOAP[:2],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in WITH_SOAP[2:]),
    ],
)
def test_so_they_do_under_the_stock_trainer(kind, changes, share, optimizer, tmp_path):
    farzi = carrier("teacher")
    farzi.config.inner |= {"optimizer": optimizer}
    rates = {}
    for given in ({}, {"learning_rate": 0.125}, {"start": STUDENT_STARTS["random"]}):
        model = AutoModelForCausalLM.from_config(config_of(kind, **changes))
        trainer = farzi.trainer(model, tmp_path, use_cpu=True, **given)
        rates[(*given,)] = trainer.create_optimizer().param_groups[0]["lr"]
    own = INNER_OF_TEACHER["lr"]
    assert rates == {(): share * own, ("learning_rate",): 0.125, ("start",): own}


def test_arguments_of_ones_own_keep_their_rate(tmp_path):
    farzi = carrier("teacher")
    args = farzi.training_arguments(tmp_path, use_cpu=True, learning_rate=0.125)
    model = AutoModelForCausalLM.from_config(config_of("gpt2", n_layer=2))
    trainer = farzi.trainer(model, args=args)
    assert trainer.create_optimizer().param_groups[0]["lr"] == args.learning_rate == 0.125


@pytest.mark.parametrize("optimizer", ["adam", "soap"])
@pytest.mark.parametrize("rate", [-1, 0.0, float("nan"), float("inf"), "0.01", True])
def test_a_rate_that_trains_nothing_is_refused(optimizer, rate, tmp_path):
    farzi = carrier("teacher")
    farzi.config.inner |= {"optimizer": optimizer}
    model = AutoModelForCausalLM.from_config(config_of("gpt2"))
    message = rf"learning_rate {rate!r} trains nothing: give a number such as 0\.01"
    with pytest.raises(ValueError, match=message):
        farzi.trainer(model, tmp_path, learning_rate=rate)
    with pytest.raises(ValueError, match=message):
        farzi.training_arguments(tmp_path, learning_rate=rate)


def test_a_training_can_have_the_whole_rate():
    students = students_of(carrier("teacher"), config_of("gpt2", n_layer=2))
    whole = replace(students.training, lowers_rate=False)
    seed = derive(students.seed, Purpose.EVALUATION_STUDENT, 0)
    with torch.no_grad():
        by_hand = students.training(
            students.learner,
            students.farzi.tensors,
            start=students.beginning(seed)[0],
            steps=3,
            seed=seed,
        )
    found = replace(students, training=whole).on_summary(0)
    assert all(torch.equal(found[name], by_hand[name]) for name in found)


# -- the teacher itself ----------------------------------------------------------------------------


def test_a_student_that_is_the_teacher_gets_one_line(caplog):
    starts._say_once.cache_clear()
    students = students_of(carrier("teacher"), config_of("gpt2"))
    with caplog.at_level(logging.WARNING):
        students.beginning(0)
        students.beginning(1)
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "--teacher" in line] == [
        "The student has the teacher's kind, width and depth, so at best its training leads back to"
        " the teacher. If you need just that model, export it without a training:"
        " farzi export SUMMARY OUT --teacher"
    ]


@pytest.mark.parametrize("changes", [{"n_layer": 2}, {"n_embd": 8}, {"n_positions": 32}])
def test_another_student_gets_none(changes, caplog):
    starts._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        students_of(carrier("teacher"), config_of("gpt2", **changes)).beginning(0)
    assert not caplog.records


# -- the stock Trainer, the card and the program ---------------------------------------------------


def test_the_card_begins_as_the_summary_says(tmp_path):
    cards = {}
    for name in ("teacher", "random", None):
        carrier(name).save_pretrained(tmp_path / str(name))
        cards[name] = (tmp_path / str(name) / "README.md").read_text(encoding="utf-8")
    line = 'student = farzi.trainer(model, "student")'
    above = "\n# The model starts with the teacher's tables, and with its layers where they fit.\n"
    assert f"{above}{line}\n" in cards["teacher"]
    for name in ("random", None):
        assert above not in cards[name]
        assert f"\n{line}\n" in cards[name]


def stock(farzi: FarziData, model, folder, **changes) -> torch.Tensor:
    """The head that the stock Trainer trains."""
    args = farzi.training_arguments(folder, seed=0, use_cpu=True, disable_tqdm=True, **changes)
    trainer = Trainer(
        model=attach_soft_inputs(model),
        train_dataset=farzi.as_dataset(),
        data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy,
        args=args,
        optimizer_cls_and_kwargs=farzi.optimizer_cls_and_kwargs,
    )
    trainer.train()
    return trainer.model.lm_head.weight.detach()


def test_the_program_trains_from_the_start_that_it_is_told(tmp_path, capsys):
    farzi = carrier("teacher", entries=len(WORDS))
    farzi.save_pretrained(tmp_path / "summary", word_tokenizer())
    heads = {}
    for start in (None, "teacher", "random"):
        output = tmp_path / f"student-{start}"
        chosen = [] if start is None else ["--start", start]
        arguments = ["--output_dir", str(output), "--learner", LLAMA, *chosen]
        main(["train", str(tmp_path / "summary"), *arguments])
        model = AutoModelForCausalLM.from_pretrained(output)
        heads[start] = model.lm_head.weight.detach()
        word = "random" if start == "random" else "warm"
        assert f"3 steps on {tmp_path / 'summary'}, {word} start;" in capsys.readouterr().out
    assert torch.equal(heads[None], heads["teacher"])
    assert not torch.allclose(heads["random"], heads["teacher"], atol=1e-3)
    # As somebody would who follows the card.
    loaded = FarziData.from_pretrained(tmp_path / "summary")
    torch.manual_seed(0)
    config = AutoModelForCausalLM.from_pretrained(output).config
    model = AutoModelForCausalLM.from_config(config)
    loaded.start(model)
    rate = 0.25 * INNER_OF_TEACHER["lr"]  # because it begins with layers
    by_hand = stock(loaded, model, tmp_path / "by_hand", learning_rate=rate)
    assert torch.equal(by_hand, heads["teacher"])
    whole = ["--learning_rate", str(INNER_OF_TEACHER["lr"]), "--output_dir", str(tmp_path / "at")]
    main(["train", str(tmp_path / "summary"), "--learner", LLAMA, *whole])
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "at").lm_head.weight
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    loaded.start(model)
    assert torch.equal(stock(loaded, model, tmp_path / "by_hand"), found)


def test_the_program_refuses_a_warm_start_without_a_teacher(tmp_path):
    farzi = carrier("teacher", entries=len(WORDS)).materialize(4)
    farzi.save_pretrained(tmp_path / "summary", word_tokenizer())
    arguments = ["--output_dir", str(tmp_path / "student"), "--learner", LLAMA]
    with pytest.raises(SystemExit) as stop:
        main(["train", str(tmp_path / "summary"), *arguments, "--start", "teacher"])
    assert "this summary carries no teacher; take 'random'" in str(stop.value.code)
    assert not (tmp_path / "student").exists()


# -- a stranger's teacher --------------------------------------------------------------------------


def test_tables_that_are_far_wider_than_their_vocabulary_cost_little():
    """The square of such a width would have 10⁹ numbers."""
    torch.manual_seed(0)
    table = torch.randn(3, 2**15)
    tables = Tables(table, 0.1 * table, None, None)
    maps = maps_between(tables, (16, 16))
    made = maps.inputs(tables.inputs) @ maps.head(tables.head).T
    torch.testing.assert_close(made, tables.inputs @ tables.head.T, rtol=1e-3, atol=1e-1)


def test_numbers_that_overflow_are_refused():
    teacher = AutoModelForCausalLM.from_config(config_of("gpt2", tie_word_embeddings=False))
    farzi = FarziData.from_teacher(teacher, sequence_length=LENGTH)
    with torch.no_grad():
        farzi.teacher.transformer.ln_f.weight.fill_(1e20)
        farzi.teacher.lm_head.weight.fill_(1e20)
    model = AutoModelForCausalLM.from_config(config_of("llama"))
    before = model.lm_head.weight.detach().clone()
    with pytest.raises(ValueError, match=r"predicts NaN or infinity .*; begin at random"):
        farzi.start(model)
    assert torch.equal(model.lm_head.weight, before)


def test_a_trainer_takes_the_name_of_a_start(tmp_path):
    how = {"use_cpu": True, "report_to": "none", "max_steps": 1}
    farzi = carrier("random")
    model = tiny_model("llama")
    before = model.lm_head.weight.detach().clone()
    farzi.trainer(model, tmp_path, start="random", **how)
    assert torch.equal(model.lm_head.weight, before)
    farzi.trainer(model, tmp_path, start="teacher", **how)
    assert not torch.equal(model.lm_head.weight, before)
    for wrong in ("warm", 3):
        with pytest.raises(ValueError, match=r"^start=.* is none of random, teacher$"):
            farzi.trainer(model, tmp_path, start=wrong, **how)


def test_a_compiled_model_is_refused(tmp_path):
    compiled = torch.compile(tiny_model("llama"), backend="eager")
    with pytest.raises(
        ValueError, match=r"^model is compiled by torch\.compile.*torch_compile=True"
    ):
        carrier().trainer(compiled, tmp_path, use_cpu=True)


def test_a_model_that_cannot_be_changed_is_named():
    with torch.inference_mode():
        model = tiny_model("llama")
    with pytest.raises(
        ValueError, match=r"^model was made under torch\.inference_mode\(\), so its "
    ):
        carrier().start(model)


def test_a_student_that_sees_the_future_is_refused(tmp_path):
    """It would read the token whose label it learns."""
    how = {"use_cpu": True, "report_to": "none", "max_steps": 1}
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {"vocab_size": V, "num_hidden_layers": 1}
    student = AutoModelForCausalLM.from_config(BertConfig(is_decoder=True, **sizes)).train()
    carrier().trainer(student, tmp_path, start="random", **how)  # also with its dropout
    assert student.training
    student = AutoModelForCausalLM.from_config(BertConfig(**sizes))
    with pytest.raises(
        ValueError, match=r"^model is a BertLMHeadModel, which sees the future; giv"
    ):
        carrier().trainer(student, tmp_path, **how)


def test_label_smoothing_has_no_effect_and_says_so(tmp_path, caplog):
    how = {"use_cpu": True, "report_to": "none", "max_steps": 1}
    carrier().trainer(tiny_model("llama"), tmp_path, label_smoothing_factor=0.1, **how)
    assert "label_smoothing_factor=0.1: no effect" in caplog.text


@pytest.mark.parametrize("model", [None, "gpt2", torch.nn.Linear(2, 2)])
def test_what_is_no_model_is_named(tmp_path, model):
    with pytest.raises(ValueError, match=r"^model is a .*, no model of transformers; give one"):
        carrier().start(model)
    with pytest.raises(ValueError, match=r"^model is a .*, no model of transformers; give one"):
        carrier().trainer(model, tmp_path)
    with pytest.raises(ValueError, match=r"^model is a .*, no model of transformers; give one"):
        attach_soft_inputs(model)
