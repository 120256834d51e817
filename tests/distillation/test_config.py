"""FarziConfig: the settings that variants declare, what it refuses, and its way through recipes,
YAML and the command line.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from transformers import TrainingArguments

from farzi_hf import engine
from farzi_hf.common.settings import collected, made, setting, settings_of
from farzi_hf.distillation import random_starts
from farzi_hf.distillation.config import UNSUPPORTED, FarziConfig
from farzi_hf.engine import OPTIMIZERS, InnerAdam, InnerAdamW, InnerSGD, Tape
from farzi_hf.summary.inner_settings import inner_optimizer

# Nothing here is a default, so that every one of them has to travel.
UNUSUAL = {
    "num_sequences": 7,
    "sequence_length": 9,
    "inputs": "soft",
    "labels": "shared",
    "latent_dim": 3,
    "tau": 0.5,
    "initialization": "clusters",
    "concentration": 3.0,
    "inner_learning_rate": 0.03,
    "inner_betas": [0.6, 0.98],
    "inner_epsilon": 1e-5,
    "inner_weight_decay": 0.01,
    "inner_steps": 12,
    "inner_steps_min": 4,
    "inner_lr_scheduler_type": "linear",
    "inner_warmup_steps": 3,
    "window": 5,
    "synthetic_batch_size": 2,
    "adjoint": "tape",
    "eval_students": 2,
    "trajectories": "omega",
    "num_trajectories": 4,
    "fresh_start_fraction": 0.25,
    "last_start": 30,
    "max_non_finite": 3,
    "teacher_steps": 3,
    "teacher_learning_rate": 0.02,
    "teacher_batch_size": 5,
    "teacher_weight_decay": 0.1,
    "storage": "int8",
    "learning_rate": 0.2,
    "lr_scheduler_type": "linear",
    "max_steps": 11,
    "max_grad_norm": 0.7,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "optim": "sgd",
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-7,
    "weight_decay": 0.001,
    "warmup_steps": 2.0,
    "bf16": False,
    "seed": 5,
}
SGD = {"inner_optimizer": "sgd", "inner_momentum": 0.3, "inner_learning_rate": 0.03}
DOCS = Path(__file__).resolve().parents[2] / "docs"
STOCK = {field.name for field in fields(TrainingArguments)}


def config(**settings) -> FarziConfig:
    return FarziConfig("out", use_cpu=True, **{"labels": "own", **settings})


# -- variants declare their settings ---------------------------------------------------------------


@dataclass(frozen=True)
class Shallow:
    depth: int = setting(2, "how deep", least=1)
    pair: tuple[float, float] = setting(
        (0.1, 0.2), "two numbers", name="shallow_pair", start=[0.3, 0.4]
    )
    hidden: int = 5


class Deep:
    @dataclass(frozen=True)
    class Settings:
        depth: int = setting(2, "how deep", least=1)
        width: int | None = setting(None, "how wide")
        inner: str = setting("shallow", "inside", table={"shallow": Shallow})


@dataclass
class House:
    kind: str = setting("shallow", "which", table={"none": None, "shallow": Shallow, "deep": Deep})
    number: float = 1.5


def test_the_settings_of_all_variants_follow_the_one_that_names_them():
    settings = collected(House)
    assert list(settings) == ["kind", "depth", "shallow_pair", "width", "inner"]
    assert settings["kind"].help == "which: none | shallow | deep"
    assert settings["depth"].metadata["least"] == 1
    assert settings["shallow_pair"].default == [0.3, 0.4]
    assert settings["shallow_pair"].hint == list[float]
    chosen = SimpleNamespace(depth=4, shallow_pair=[0.3, 0.4])
    assert made(Shallow, chosen) == Shallow(4, (0.3, 0.4))


def test_a_setting_names_the_variants_that_read_it():
    settings = collected(House)
    readers = {name: setting.readers(name) for name, setting in settings.items()}
    assert readers == {
        "kind": [],
        "depth": ["kind=shallow", "kind=deep", "inner=shallow"],
        "shallow_pair": ["kind=shallow", "inner=shallow"],
        "width": ["kind=deep"],
        "inner": ["kind=deep"],
    }


def test_variants_that_share_a_setting_have_one_default():
    @dataclass
    class Other:
        depth: int = setting(3, "how deep")

    @dataclass
    class Config:
        kind: str = setting("a", "which", table={"a": Shallow, "b": Other})

    with pytest.raises(TypeError, match="depth has the default 2 in one variant and 3 in another"):
        collected(Config)


def test_the_fields_of_the_config_are_written_as_the_variants_declare_them():
    spec = importlib.util.spec_from_file_location("config_fields", DOCS / "config_fields.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.source() == writer.FIELDS.read_text(encoding="utf-8"), (
        "run python docs/config_fields.py"
    )


def test_every_setting_of_a_variant_is_a_field_and_says_what_it_is():
    ours = [field for field in fields(FarziConfig) if field.name not in STOCK]
    assert {field.name for field in ours} == FarziConfig.settings.keys()
    assert all(field.metadata["help"] for field in ours)
    for table in (each.metadata.get("table", {}) for each in FarziConfig.settings.values()):
        for kind in table.values():
            assert {name for name, _, _ in settings_of(kind)} <= FarziConfig.settings.keys()


def test_a_setting_that_no_chosen_variant_uses_is_said_to_have_no_effect(caplog):
    config(inputs="soft", labels="shared", tau=0.5, latent_dim=3)
    config(**UNUSUAL)
    assert not caplog.records
    for _ in range(2):  # it is said once
        config(tau=0.77)
    config(inputs="soft", initialization="random", concentration=7.7)
    config(**{**SGD, "inner_betas": [0.7, 0.7]})
    config(last_start=77)
    config(labels="shared", inputs="soft", num_teachers=77)  # it has none
    config(labels="own", student_start="teacher")
    assert caplog.messages == [
        "tau=0.77 has no effect with inputs='tokens'.",
        "concentration=7.7 has no effect with initialization='random'.",
        "inner_betas=[0.7, 0.7] has no effect with inner_optimizer='sgd'.",
        "last_start=77 has no effect with trajectories=None.",
        "num_teachers=77 has no effect with labels='shared'.",
        "student_start='teacher' has no effect with labels='own'.",
    ]


def test_students_begin_with_the_teacher_where_a_summary_carries_one():
    assert config(labels="teacher").inner_settings()["student_start"] == "teacher"
    assert config(labels="teacher", student_start="random").student_start == "random"
    assert "student_start" not in config(labels="own").inner_settings()
    with pytest.raises(ValueError, match="student_start='warm' is unknown; choose one of random"):
        config(labels="teacher", student_start="warm")


# -- recipes, YAML, command line -------------------------------------------------------------------


def test_what_is_more_than_there_is_warns(caplog):
    config(inputs="tokens", num_sequences=4, synthetic_batch_size=80, inner_steps=10, window=20)
    config(inputs="tokens", num_sequences=80, synthetic_batch_size=80, inner_steps=10, window=10)
    assert [
        record.getMessage() for record in caplog.records if "is more than" in record.getMessage()
    ] == [
        "window=20 is more than inner_steps=10: all are differentiated.",
        "synthetic_batch_size=80 is more than num_sequences=4: a step takes all.",
    ]


def test_a_recipe_makes_the_same_config_again_and_survives_yaml():
    recipe = config(**UNUSUAL).to_recipe()
    assert {name: recipe[name] for name in UNUSUAL} == UNUSUAL
    assert config(**recipe).to_recipe() == recipe == yaml.safe_load(yaml.safe_dump(recipe))
    assert {type(value) for value in recipe.values()} <= {str, int, float, bool, list, type(None)}


def test_a_recipe_holds_all_settings_of_ours_and_nothing_of_this_machine():
    recipe = config(logging_steps=3, run_name="mine", dataloader_num_workers=1).to_recipe()
    assert FarziConfig.settings.keys() <= recipe.keys()
    assert not recipe.keys() & {
        "output_dir",
        "logging_steps",
        "run_name",
        "dataloader_num_workers",
        "use_cpu",
    }
    recipe = config(num_train_epochs=2.0, max_steps=-1, data_seed=3).to_recipe()
    assert (recipe["num_train_epochs"], recipe["max_steps"], recipe["data_seed"]) == (2.0, -1, 3)


def test_numbers_of_yaml_and_numpy_become_those_of_python():
    """YAML 1.1, which PyYAML reads, takes 1e-2 for a text."""
    args = config(
        max_steps=np.int64(5),
        learning_rate="1e-2",
        inner_epsilon=np.float32(0.5),
        inner_betas=["5e-1", 0.9],
    )
    assert (args.max_steps, args.learning_rate, args.inner_epsilon, args.inner_betas) == (
        5,
        0.01,
        0.5,
        [0.5, 0.9],
    )
    assert args.to_recipe()["max_steps"] == 5


# -- what is refused -------------------------------------------------------------------------------


NOT_USABLE = {
    "inputs='magic' is unknown; choose one of soft, tokens": {"inputs": "magic"},
    "num_sequences=0 is not usable; give an integer of at least 1": {"num_sequences": 0},
    "window=-1 is not usable; give an integer of at least 0": {"window": -1},
    "concentration=nan is not usable; give a number above 0, or None": {
        "inputs": "soft",
        "concentration": float("nan"),
    },
    "concentration=0.0 is not usable": {
        "inputs": "soft",
        "initialization": "clusters",
        "concentration": 0.0,
    },
    "learning_rate=nan is not usable": {"learning_rate": float("nan")},
    "train_sampling_strategy='group_by_length' follows no seed": {
        "train_sampling_strategy": "group_by_length"
    },
    "inner_steps_min=11 is more than inner_steps=10; lower inner_steps_min": {
        "inner_steps": 10,
        "inner_steps_min": 11,
    },
    "settings of the inner optimizer, inner_…: lr": {"inner_learning_rate": -1.0},
    "settings of the inner optimizer, inner_…: betas": {"inner_betas": [0.9]},
    "settings of the inner optimizer, inner_…: eps": {"inner_epsilon": 0.0},
    "settings of the inner optimizer, inner_…: momentum": {
        "inner_optimizer": "sgd",
        "inner_momentum": 1.0,
    },
    "settings of the teacher, teacher_…: lr": {"teacher_learning_rate": -1.0},
    "settings of the packing, packing_…: packing_penalty must be a finite number from 0 on": {
        "packing_penalty": -1.0
    },
    "settings of the summary: tau must be a positive, finite number": {"tau": 0.0},
    "settings of the summary: labels='shared' need inputs of 'soft', got inputs='tokens'": {
        "labels": "shared",
        "inputs": "tokens",
    },
    "fresh_start_fraction=1.5 is not a share; give a number from 0 to 1": {
        "trajectories": "omega",
        "fresh_start_fraction": 1.5,
    },
    "inner_betas='fast' is not a number; write it as": {"inner_betas": ["fast", 0.9]},
    "trajectories is None; call record_trajectories": {"objective": "trajectory_matching"},
    "num_train_epochs=3.0 and max_steps=400: exactly one of them": {
        "num_train_epochs": 3.0,
        "max_steps": 400,
    },
    "lr_scheduler_kwargs='{' is not JSON": {"lr_scheduler_kwargs": "{"},
    "num_train_epochs=0.0 and max_steps=-1: exactly one of them": {"max_steps": -1},
}


@pytest.mark.parametrize("message", NOT_USABLE)
def test_settings_out_of_range_are_refused_at_once(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**NOT_USABLE[message])


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_setting_of_the_trainer_that_a_distillation_has_no_use_for_is_refused(name):
    given = {
        "label_smoothing_factor": 0.1,
        "neftune_noise_alpha": 5.0,
        "deepspeed": {"zero_optimization": {"stage": 2}},
        "fsdp": "full_shard",
    }
    given["torch_compile_backend"] = "inductor"
    with pytest.raises(ValueError, match=rf"^{name}=.* is not supported: [^\n]+$"):
        config(**{name: given.get(name, True)})


@pytest.mark.parametrize(
    "settings",
    [
        {"fresh_start_fraction": None},
        {"objective": ["x"]},
        {"trajectories": 5},
        {"inner_steps": 150.0},
        {"inner_steps": True},
        {"inner_epsilon": True},
        {"max_steps": "ten"},
        {"save_total_limit": 0.5},
        {"bf16": None},
        {"inner_betas": [None, 0.9]},
    ],
    ids=str,
)
def test_a_field_of_another_type_is_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name}=.* is a \w+; give a value of type "):
        config(**settings)


# -- what the fields make --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "optimizer"),
    [
        ({}, "soap"),
        ({"labels": "teacher", "inputs": "written"}, "soap"),
        ({"labels": "teacher", "max_steps": 3}, "adam"),
        ({"labels": "teacher", "num_train_epochs": 1}, "adam"),
        ({"labels": "own", "max_steps": 0}, "adam"),
        ({"labels": "shared"}, "adam"),
        ({"labels": "teacher", "inner_optimizer": "adamw"}, "adamw"),
    ],
)
def test_students_of_a_carried_teacher_have_soap_unless_outer_steps_need_a_derivative(
    given, optimizer
):
    args = FarziConfig("out", use_cpu=True, **given)
    assert args.inner_optimizer == args.inner_settings()["optimizer"] == optimizer
    assert isinstance(args.make_training().optimizer, OPTIMIZERS[optimizer])


def test_outer_steps_with_an_optimizer_that_has_no_derivative_are_refused():
    with pytest.raises(
        ValueError,
        match=(
            r"inner_optimizer='soap' has no derivative.* give max_steps=0, or"
            r" inner_optimizer='adam'"
        ),
    ):
        FarziConfig("out", use_cpu=True, labels="teacher", inner_optimizer="soap", max_steps=3)


def test_the_teachers_optimizer_has_the_rate_and_the_decay_of_the_settings():
    given = {"teacher_learning_rate": 0.02, "teacher_weight_decay": 0.1}
    assert config(**given).make_teacher_training().optimizer == InnerAdam(
        0.02, (0.5, 0.999), 1e-4, weight_decay=0.1
    )
    soap = config(**given, teacher_optimizer="soap").make_teacher_training().optimizer
    assert soap == OPTIMIZERS["soap"](0.02, (0.7, 0.99), 1e-5, weight_decay=0.1)


def test_an_inner_optimizer_gets_its_settings_and_no_others():
    assert config(**UNUSUAL).make_inner_optimizer() == InnerAdam(
        lr=0.03, betas=(0.6, 0.98), eps=1e-5, weight_decay=0.01
    )
    assert config(**SGD).make_inner_optimizer() == InnerSGD(lr=0.03, momentum=0.3)
    assert config(**SGD, inner_steps=12).inner_settings() == {
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.3,
        "weight_decay": 0.0,
        "steps": 12,
        "synthetic_batch_size": 50,
        "lr_scheduler_type": "constant",
    }


@dataclass(frozen=True)
class Rooted(InnerAdam):
    eps_root: float = 1e-9


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ("drawn", "teacher", "coded5", 300, 0.03, [0.7, 0.95], "warmup_stable_decay", 40, 0)),
        (
            {"inputs": "written", "inner_steps": 7},
            ("written", "teacher", "coded5", 7, 0.03, [0.7, 0.95], "warmup_stable_decay", 40, 0),
        ),
        (
            {"inputs": "soft", "inner_learning_rate": 0.03},
            ("soft", "own", "exact", 100, 0.03, [0.7, 0.999], "constant", None, 400),
        ),
        (
            {"labels": "own", "num_train_epochs": 2.0},
            ("tokens", "own", "exact", 100, 0.02, [0.7, 0.999], "constant", None, -1),
        ),
        (
            {"labels": "shared", "max_steps": 0},
            ("soft", "shared", "exact", 100, 0.02, [0.7, 0.999], "constant", None, 0),
        ),
    ],
)
def test_the_form_of_the_labels_decides_what_is_left_open(given, found):
    args = FarziConfig("out", use_cpu=True, **given)
    names = ("inputs", "labels", "storage", "inner_steps", "inner_learning_rate", "inner_betas")
    names += ("inner_lr_scheduler_type", "synthetic_batch_size", "max_steps")
    assert tuple(getattr(args, name) for name in names) == found
    assert FarziConfig("out", use_cpu=True, **args.to_recipe()).to_recipe() == args.to_recipe()


def test_a_table_takes_variants_of_others(monkeypatch, caplog):
    """As the error about a setting that is gone says."""
    monkeypatch.setitem(engine.OPTIMIZERS, "rooted", Rooted)
    args = config(inner_optimizer="rooted", inner_epsilon=1e-5)
    assert args.make_inner_optimizer() == Rooted(0.02, (0.7, 0.999), 1e-5, 1e-9)
    assert args.make_training().optimizer == args.make_inner_optimizer()
    assert not caplog.records


def test_the_inner_loop_gets_its_settings():
    training = config(**UNUSUAL).make_training()
    assert training.forms.inputs.tau == 0.5
    assert (training.batch_size, training.window, training.adjoint) == (2, 5, Tape())
    objective = config(**{**UNUSUAL, "trajectories": None}).make_objective(training=training)
    assert (objective.steps, objective.steps_min, objective.training) == (12, 4, training)
    assert objective.starts is random_starts
    assert config(inner_steps=10).make_objective(training=training).training is training
    assert config(inner_steps=10).make_objective().steps_min == 10
    assert config(inner_steps=10, inner_steps_min=10).make_objective().steps_min == 10


def test_adamw_and_clipping_travel_with_the_summary():
    settings = config(
        inner_optimizer="adamw",
        inner_learning_rate=0.03,
        inner_weight_decay=0.1,
        inner_max_grad_norm=2.0,
    )
    assert settings.make_inner_optimizer().max_grad_norm == 2.0
    assert inner_optimizer(settings.inner_settings()) == settings.make_inner_optimizer()
    assert isinstance(settings.make_inner_optimizer(), InnerAdamW)
    assert settings.max_grad_norm == 0.1, "the outer loop has one of its own"


def test_the_summary_carries_the_inner_loop_along():
    summary = config(**UNUSUAL).summary_config(vocab_size=13)
    assert (summary.num_sequences, summary.sequence_length, summary.latent_dim) == (7, 9, 3)
    assert (summary.vocab_size, summary.tau, summary.storage) == (13, 0.5, "int8")
    assert summary.inner == {
        "optimizer": "adam",
        "lr": 0.03,
        "betas": [0.6, 0.98],
        "eps": 1e-5,
        "weight_decay": 0.01,
        "steps": 12,
        "synthetic_batch_size": 2,
        "lr_scheduler_type": "linear",
        "warmup_steps": 3,
    }
    assert config(num_sequences=7).summary_config(13).inner["synthetic_batch_size"] == 7


# -- inherited defaults ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "greater"), [("sentence_perplexity", False), ("loss", False), ("accuracy", True)]
)
def test_whether_a_greater_metric_is_better(metric, greater):
    assert config(metric_for_best_model=metric).greater_is_better is greater
    assert config(metric_for_best_model=metric, greater_is_better=True).greater_is_better is True


def test_nothing_is_pinned_on_a_cpu():
    """torch would warn at each data loader."""
    assert (
        config().dataloader_pin_memory
        is config(dataloader_pin_memory=True).dataloader_pin_memory
        is False
    )


def test_the_docstring_lists_exactly_the_inherited_defaults_that_differ():
    def default(field):
        return field.default if field.default_factory is MISSING else field.default_factory()

    stock = {field.name: default(field) for field in fields(TrainingArguments)}
    ours = {field.name: default(field) for field in fields(FarziConfig) if field.name in stock}
    line = r"^ *- `(\w+)` is (.+?)[:,.](?: |$)"
    rows = re.findall(line, FarziConfig.__doc__, flags=re.MULTILINE)
    listed = {name: yaml.safe_load(text) for name, text in rows}
    assert listed.pop("greater_is_better") == "False for a perplexity"  # depends on another field
    assert listed.pop("max_steps") == "0 or 400"  # by the labels
    ours.pop("max_steps")
    assert listed.pop("dataloader_pin_memory") == "False on a CPU"  # on the machine
    assert listed == {name: value for name, value in ours.items() if value != stock[name]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"torch_compile_mode": "reduce-overhead"}, "reduce-overhead"),
        ({"torch_compile": True}, True),
    ],
)
def test_compilation_is_of_the_inner_loop_and_trainer_does_not_see_it(given, expected, monkeypatch):
    monkeypatch.delenv("ACCELERATE_DYNAMO_BACKEND", raising=False)
    args = config(**given)
    assert args.make_training().torch_compile == expected
    assert args.torch_compile
    assert "ACCELERATE_DYNAMO_BACKEND" not in os.environ
