"""FarziConfig: what it refuses, what it makes of its fields, and its way through YAML and the command line."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields

import numpy as np
import pytest
import yaml
from transformers import HfArgumentParser, TrainingArguments

from farzi_hf.distillation import random_starts
from farzi_hf.distillation.config import AUTO, INITIALIZATIONS, OBJECTIVES, FarziConfig
from farzi_hf.engine import ADJOINTS, OPTIMIZERS, Checkpoint, Direct, InnerAdam, InnerSGD, Reversible, Tape

# Nothing here is a default, so that every one of them has to travel.
UNUSUAL = {
    "num_sequences": 7, "sequence_length": 9, "latent_dim": 3, "tau": 0.5, "latent_std": 0.2, "initialization": "random", "concentration": 3.0,
    "inner_optimizer": "adam", "inner_learning_rate": 0.02, "inner_betas": [0.7, 0.98], "inner_epsilon": 1e-5,
    "inner_epsilon_root": 1e-9, "inner_momentum": 0.3, "inner_weight_decay": 0.01, "inner_steps": 12, "inner_steps_min": 4,
    "inner_lr_scheduler_type": "linear",
    "window": 5, "synthetic_batch_size": 2, "learners_per_step": 2, "objective": "meta_matching", "adjoint": "tape", "eval_students": 2,
    "trajectories": "omega", "num_trajectories": 4, "fresh_start_fraction": 0.25, "last_start": 30, "synthetic_steps": 6, "expert_steps": 20,
    "max_non_finite": 3, "learning_rate": 0.2, "lr_scheduler_type": "linear", "max_steps": 11, "max_grad_norm": 0.7,
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "optim": "sgd", "adam_beta1": 0.8,
    "adam_beta2": 0.99, "adam_epsilon": 1e-7, "weight_decay": 0.001, "warmup_steps": 2.0, "bf16": False, "seed": 5,
}  # fmt: skip


def config(**settings) -> FarziConfig:
    return FarziConfig("out", use_cpu=True, **settings)


# -- recipes, YAML, command line -------------------------------------------------------------------------------------


def test_a_recipe_makes_the_same_config_again():
    recipe = config(**UNUSUAL).to_recipe()
    assert {name: recipe[name] for name in UNUSUAL} == UNUSUAL
    assert config(**recipe).to_recipe() == recipe


def test_a_recipe_survives_yaml_and_holds_plain_types_only():
    recipe = config(**UNUSUAL).to_recipe()
    assert yaml.safe_load(yaml.safe_dump(recipe)) == recipe
    assert {type(value) for value in recipe.values()} <= {str, int, float, bool, list, type(None)}


def test_a_recipe_holds_all_settings_of_ours_and_nothing_of_this_machine():
    recipe = config(logging_steps=3, run_name="mine", dataloader_num_workers=1).to_recipe()
    ours = {field.name for field in fields(FarziConfig)} - {field.name for field in fields(TrainingArguments)}
    assert ours <= recipe.keys()
    assert not recipe.keys() & {"output_dir", "logging_steps", "run_name", "dataloader_num_workers", "use_cpu"}


def test_a_yaml_file_gives_the_settings_that_it_names(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"output_dir": "out", "use_cpu": True, **UNUSUAL}), encoding="utf-8")
    (parsed,) = HfArgumentParser(FarziConfig).parse_yaml_file(path)
    assert parsed.to_recipe() == config(**UNUSUAL).to_recipe()


def test_yaml_writes_small_numbers_as_text(tmp_path):
    """YAML 1.1, which PyYAML reads, takes 1e-2 for a string."""
    path = tmp_path / "settings.yaml"
    path.write_text(
        "output_dir: out\nuse_cpu: true\nlearning_rate: 1e-2\ninner_epsilon: 1e-5\ninner_betas: [5e-1, 0.9]\n"
    )
    assert yaml.safe_load(path.read_text())["inner_epsilon"] == "1e-5"
    (parsed,) = HfArgumentParser(FarziConfig).parse_yaml_file(path)
    assert (parsed.learning_rate, parsed.inner_epsilon) == (0.01, 1e-5)
    assert parsed.make_inner_optimizer().betas == (0.5, 0.9)
    assert parsed.to_recipe()["inner_betas"] == [0.5, 0.9]


def test_the_command_line_sets_every_kind_of_field():
    arguments = (
        "--output_dir out --use_cpu --num_sequences 7 --tau 5e-1 --inner_betas 0.5 0.9 --window 0 --inner_steps_min 3"
    )
    (parsed,) = HfArgumentParser(FarziConfig).parse_args_into_dataclasses(arguments.split())
    expected = config(num_sequences=7, tau=0.5, inner_betas=[0.5, 0.9], window=0, inner_steps_min=3)
    assert parsed.to_recipe() == expected.to_recipe()


@pytest.mark.parametrize("name", ["tau", "inner_learning_rate", "learning_rate", "max_grad_norm"])
def test_text_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}='fast' is not a number; write it as"):
        config(**{name: "fast"})
    with pytest.raises(ValueError, match="inner_betas='fast' is not a number"):
        config(inner_betas=["fast", 0.9])


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("initialization", INITIALIZATIONS),
        ("inner_optimizer", OPTIMIZERS),
        ("objective", OBJECTIVES),
        ("adjoint", (AUTO, *ADJOINTS)),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(name, table):
    with pytest.raises(ValueError, match=f"{name}='magic' is unknown; choose one of {', '.join(table)}"):
        config(**{name: "magic"})
    for known in table:
        assert getattr(config(**{name: known, "trajectories": "omega"}), name) == known


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [
        ("num_sequences", 0, 1),
        ("sequence_length", 1, 2),
        ("latent_dim", 2.5, 1),
        ("inner_steps", 150.0, 1),
        ("inner_steps", True, 1),
        ("inner_steps_min", 0, 1),
        ("synthetic_batch_size", 0, 1),
        ("window", -1, 0),
        ("eval_students", 0, 1),
        ("max_non_finite", -1, 0),
        ("expert_steps", 0, 1),
        ("synthetic_steps", 0, 1),
        ("num_trajectories", 0, 1),
        ("last_start", -1, 0),
    ],
)
def test_counts_out_of_range_are_refused(name, value, minimum):
    with pytest.raises(ValueError, match=rf"{name}={value} is not usable; give an integer of at least {minimum}"):
        config(**{name: value})


def test_the_least_number_of_steps_must_not_exceed_the_most():
    with pytest.raises(
        ValueError,
        match="inner_steps_min=11 is more than inner_steps=10, but T is drawn between the two; lower inner_steps_min",
    ):
        config(inner_steps=10, inner_steps_min=11)
    assert config(inner_steps=10, inner_steps_min=10).make_objective().steps_min == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"inner_learning_rate": -1.0},
        {"inner_betas": [0.9]},
        {"inner_epsilon": 0.0},
        {"inner_optimizer": "sgd", "inner_momentum": 1.0},
        {"inner_weight_decay": -0.1},
    ],
    ids=str,
)
def test_settings_that_the_inner_optimizer_cannot_use_are_refused_at_once(settings):
    with pytest.raises(ValueError, match=r"settings of the inner optimizer, inner_…: "):
        config(**settings)


@pytest.mark.parametrize("concentration", [0.0, -1.0, float("nan")])
def test_a_concentration_is_above_zero(concentration):
    with pytest.raises(
        ValueError,
        match=f"concentration={concentration} is not usable; give a number above 0, for instance 8.0, or None",
    ):
        config(concentration=concentration)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match=f"fresh_start_fraction={share} is no share; give a number from 0 to 1"):
        config(fresh_start_fraction=share)


def test_matching_trajectories_needs_some():
    with pytest.raises(ValueError, match=r"trajectories is None; record them with recipes/paper/trajectories\.py"):
        config(objective="trajectory_matching")


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"latent_std": -1.0}])
def test_settings_of_the_summary_are_refused_by_name(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be a positive, finite number"):
        config(**settings).summary_config(vocab_size=10)


def test_half_precision_without_loss_scaling_is_refused():
    with pytest.raises(ValueError, match=r"fp16=True is not supported: .* use bf16"):
        config(fp16=True)


@pytest.mark.parametrize(
    "setting",
    [
        {"bf16_full_eval": True},  # rounded the summary in place
        {"fp16_full_eval": True},
        {"label_smoothing_factor": 0.1},  # did nothing
        {"neftune_noise_alpha": 5.0},  # 'FarziData' object has no attribute …
        {"gradient_checkpointing": True},
        {"use_liger_kernel": True},
        {"save_only_model": True},  # a run was lost when it was interrupted
        {"deepspeed": {"zero_optimization": {"stage": 2}}},
        {"fsdp": "full_shard"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_of_the_trainer_that_a_distillation_has_no_use_for_is_refused(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=rf"^{name}=.* is not supported: [^\n]+$"):
        config(**setting)


@pytest.mark.parametrize("given", [{"num_train_epochs": 3.0}, {"max_steps": -1}])
def test_epochs_and_steps_do_not_contradict_each_other(given):
    with pytest.raises(ValueError, match=r"num_train_epochs=.* max_steps=.*: exactly one of them"):
        config(**given)
    assert config(num_train_epochs=2.0, max_steps=-1).num_train_epochs == 2.0


# -- what the fields make --------------------------------------------------------------------------------------------


def test_adam_gets_all_its_settings():
    expected = InnerAdam(lr=0.02, betas=(0.7, 0.98), eps=1e-5, eps_root=1e-9, weight_decay=0.01)
    assert config(**UNUSUAL).make_inner_optimizer() == expected


def test_sgd_gets_its_settings_and_none_of_adams():
    sgd = config(**{**UNUSUAL, "inner_optimizer": "sgd"})
    assert sgd.make_inner_optimizer() == InnerSGD(lr=0.02, momentum=0.3, weight_decay=0.01)
    assert sgd.inner_settings() == {
        "optimizer": "sgd", "lr": 0.02, "weight_decay": 0.01, "momentum": 0.3, "steps": 12, "synthetic_batch_size": 2,
        "lr_scheduler_type": "linear",
    }  # fmt: skip


def test_the_inner_loop_gets_its_settings():
    training = config(**UNUSUAL).make_training()
    assert (training.tau, training.batch_size, training.window, training.adjoint) == (0.5, 2, 5, Tape())
    objective = config(**{**UNUSUAL, "trajectories": None}).make_objective()
    assert (objective.steps, objective.steps_min, objective.training) == (12, 4, training)
    assert (objective.learners, objective.starts) == (2, random_starts)
    training = config(**UNUSUAL).make_training()
    assert config(**{**UNUSUAL, "trajectories": None}).make_objective(training=training).training is training


@pytest.mark.parametrize("window", [None, 0])
def test_no_window_differentiates_all_steps(window):
    assert config(window=window).make_training().window is None


def test_a_window_may_be_longer_than_the_training():
    """T is drawn, so a window has to fit the most steps or fewer; `SyntheticTraining` cuts it."""
    assert config(inner_steps=10, inner_steps_min=5, window=40).make_training().window == 40


def test_steps_are_fixed_unless_there_is_a_least_number():
    objective = config(inner_steps=10).make_objective()
    assert (objective.steps_min, objective.steps) == (10, 10)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", None),
        ("direct", Direct()),
        ("tape", Tape()),
        ("checkpoint", Checkpoint()),
        ("reversible", Reversible()),
    ],
)
def test_adjoints_by_name(name, expected):
    assert config(adjoint=name).make_training().adjoint == expected


def test_the_summary_carries_the_inner_loop_along():
    summary = config(**UNUSUAL).summary_config(vocab_size=13)
    assert (summary.num_sequences, summary.sequence_length, summary.latent_dim) == (7, 9, 3)
    assert (summary.vocab_size, summary.tau, summary.latent_std) == (13, 0.5, 0.2)
    assert summary.inner == {
        "optimizer": "adam", "lr": 0.02, "weight_decay": 0.01, "betas": [0.7, 0.98], "eps": 1e-5, "eps_root": 1e-9,
        "steps": 12, "synthetic_batch_size": 2, "lr_scheduler_type": "linear",
    }  # fmt: skip
    assert config(num_sequences=7).summary_config(13).inner["synthetic_batch_size"] == 7


# -- inherited defaults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["perplexity", "eval_perplexity", "sentence_perplexity", "loss"])
def test_lower_is_better(metric):
    assert config(metric_for_best_model=metric).greater_is_better is False


def test_greater_is_better_where_trainer_or_the_user_says_so():
    assert config(metric_for_best_model="accuracy").greater_is_better is True
    assert config(metric_for_best_model="perplexity", greater_is_better=True).greater_is_better is True


def test_nothing_is_pinned_on_a_cpu():
    """torch would warn at each data loader."""
    assert config().dataloader_pin_memory is config(dataloader_pin_memory=True).dataloader_pin_memory is False


def test_checkpoints_are_saved_along_the_way():
    assert config().save_steps * 4 <= config().max_steps
    assert config().save_total_limit > 1


def test_the_table_lists_exactly_the_inherited_defaults_that_differ():
    def default(field):
        return field.default if field.default_factory is MISSING else field.default_factory()

    stock = {field.name: default(field) for field in fields(TrainingArguments)}
    ours = {field.name: default(field) for field in fields(FarziConfig) if field.name in stock}
    rows = re.findall(r"^ *\| `(\w+)` \| (.+?) \|", FarziConfig.__doc__, flags=re.MULTILINE)
    listed = {name: yaml.safe_load(text) for name, text in rows}
    assert listed.pop("greater_is_better") == "False for a perplexity"  # depends on another field
    assert listed.pop("dataloader_pin_memory") == "False on a CPU"  # on the machine
    assert listed == {name: value for name, value in ours.items() if value != stock[name]}


def test_the_config_serialises_as_trainer_callbacks_need_it():
    json.loads(config(**UNUSUAL).to_json_string())


# -- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"fresh_start_fraction": None}, {"tau": [1]}, {"objective": ["x"]}, {"adjoint": 3}, {"trajectories": 5}, {"concentration": {}},
    {"inner_epsilon": True}, {"max_steps": None}, {"max_steps": 2.5}, {"per_device_train_batch_size": [8]}, {"save_total_limit": 0.5},
    {"gradient_accumulation_steps": True}, {"bf16": None}, {"save_steps": {}},
    {"inner_betas": [None, 0.9]}],
    ids=str,
)  # fmt: skip
def test_a_field_of_another_type_is_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name}=.* is a \w+; give a value of type "):
        config(**settings)


def test_a_recipe_holds_the_length_of_a_run_in_epochs():
    recipe = config(num_train_epochs=2.0, max_steps=-1, data_seed=3).to_recipe()
    assert (recipe["num_train_epochs"], recipe["max_steps"], recipe["data_seed"]) == (2.0, -1, 3)


def test_a_setting_of_another_form_is_said_to_have_no_effect(caplog):
    config(inputs="soft", labels="shared", tau=0.5, latent_dim=3)
    assert not caplog.records
    config(inputs="tokens", labels="own", tau=0.77)
    config(inputs="tokens", labels="own", tau=0.77)  # it is said once
    config(inputs="soft", labels="shared", label_dim=77)
    assert [record.message for record in caplog.records] == [
        "tau=0.77 has no effect with inputs='tokens'.", "label_dim=77 has no effect with labels='shared'.",
    ]  # fmt: skip


def test_numbers_of_numpy_become_those_of_python():
    args = config(max_steps=np.int64(5), learning_rate=np.float32(0.5), inner_steps=np.int64(4))
    assert (args.max_steps, args.learning_rate, args.inner_steps) == (5, 0.5, 4)
    assert args.to_recipe()["max_steps"] == 5


@pytest.mark.parametrize(
    "settings",
    [{"learning_rate": float("nan")}, {"gradient_accumulation_steps": 0}, {"per_device_train_batch_size": 0}],
    ids=str,
)
def test_numbers_of_the_outer_loop_out_of_range_are_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name}=(nan|0) is not usable; give "):
        config(**settings)


def test_fields_of_other_types_than_plain_ones_are_the_trainers_business():
    assert config(liger_kernel_config={"rope": True}).liger_kernel_config == {"rope": True}
