"""Settings from a YAML file and the command line: types, precedence, and one line for what is
wrong.
"""

from __future__ import annotations

import json
import os

import pytest
import yaml
from tiny_recipes import CONFIGS
from tiny_trainer import tiny_trainer

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.program import ends_in_one_line
from farzi_hf.report import BASELINES, RunSettings

TYPES = (RunSettings, FarziConfig)
DEFAULT = CONFIGS / "ptb_50x50.yaml"


def parse(*argv: str) -> tuple[RunSettings, FarziConfig]:
    return parse_arguments(TYPES, DEFAULT, argv)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_config_gives_every_field_its_value_and_a_model(path):
    settings, args = parse("--config", str(path))
    assert args.output_dir == f"outputs/{path.stem}"
    assert settings.learner["model_type"] in ("gpt2", "sasrec", "fmlp")
    in_file = yaml.safe_load(path.read_text(encoding="utf-8"))
    parsed = {**vars(settings), **vars(args)}
    assert {
        k: float(v) if isinstance(parsed[k], float) else v for k, v in in_file.items()
    }.items() <= parsed.items()
    if "x" in path.stem:
        assert f"_{args.num_sequences}x{args.sequence_length}" in path.stem


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("learning_rate: 2e-2\ninner_epsilon: 1e-5\ninner_betas: [0.8, 0.9]\n")
    settings, args = parse(
        "--config", str(path), "--inner_epsilon", "1e-3", "--learner", '{"model_type": "farzi_rnn"}'
    )
    assert (args.learning_rate, args.inner_epsilon, args.inner_betas) == (0.02, 0.001, [0.8, 0.9])
    assert settings.learner == {"model_type": "farzi_rnn"}
    assert settings.teachers == [settings.learner]
    kinds = [{"model_type": "gpt2"}, {"model_type": "farzi_rnn"}]
    settings, _ = parse("--config", str(path), "--teacher", json.dumps(kinds))
    assert settings.teachers == settings.teacher == kinds


def test_a_config_in_another_encoding_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("dataset: caf\xe9\n".encode("latin-1"))
    with pytest.raises(
        ValueError,
        match=(
            r"^config='.*latin\.yaml' cannot be read: .*position 12.*; give a YAML file in UTF-8$"
        ),
    ):
        parse("--config", str(tmp_path / "latin.yaml"))


NO_VALUES = {
    "!!int ''": "'' is no !!int",
    "!!float ''": "'' is no !!float",
    "!!bool x": "'x' is no !!bool",
    "!!timestamp x": "the tag !!timestamp is not read; leave it out",
    "!!python/name:os.system": "the tag !!python/name:os.system is not read",
    "!!seq x": "expected a sequence node, but found scalar",
}
"""YAML that is not a plain value, and what is said of it."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("inner_step: 5", "unknown key 'inner_step': did you mean inner_steps?"),
        ("- 5", "holds a list"),
        ("inner_steps: [", "cannot be read"),
        ("baselines: [none]", f"'none' is unknown; choose from {', '.join(BASELINES)}"),
        ("learner: {n_embd: 8}", "has no model_type"),
        ("learner: gpt2", '(char 0); write it as {"model_type": "gpt2"}'),
        ("teacher: [{model_type: gpt2}, {n_embd: 8}]", "teacher={'n_embd': 8} has no model_type"),
        ("num_students: 0", "give at least 1"),
        ("long_steps: 0", "long_steps=0 trains nothing: give at least 1"),
        ("splits: []", "splits=[] is not usable: give a list of different numbers of at least 0"),
        ("splits: [0, 1, 0]", "splits=[0, 1, 0] is not usable"),
        ("dataset: sample_interactions\nsequence_length: 1", "sequence_length=1 is not usable"),
        ("num_students: null", "num_students=None is a NoneType; give a value of type int"),
        ("splits: '0'", "splits='0' is a str; give a value of type list[int]"),
        ("inner_betas: [0.5, x]", "inner_betas='x' is not a number; write it as 0.01 or 1.0e-2"),
        *[(f"seed: {tag}", f"line 1, column 7: {said}") for tag, said in NO_VALUES.items()],
        ("learner: {1: 2}", "line 1, column 10: the key 1 is not text; put it in quotes"),
        ("a: &a [x, x]\nlearner: [*a, *a]", "aliases (*name) are not read; write the value out"),
        ("seed: !%1b 0", r"the tag !\x1b is not read"),
        (f"seed: {':'.join('1' * 60_000)}", "a number has 119,999 digits"),
        ("a: " + "[" * 5000, "it is nested too deep"),
        ("#" * 132_000, "is larger than the 131,072 bytes that are read"),
    ],
    ids=lambda value: value[:40],
)
def test_a_config_that_is_wrong_ends_in_one_line(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop, ends_in_one_line("ptb.py"):
        parse("--config", str(path))
    assert stop.value.code.startswith("ptb.py: ")
    assert message in stop.value.code


def test_a_config_that_is_no_plain_file_is_not_waited_for(tmp_path):
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    for name in (path, "/dev/zero"):
        with pytest.raises(ValueError, match="is not a plain file"):
            parse("--config", str(name))


def test_what_yaml_reads_as_another_type_is_what_was_meant(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "dataset: sample\nuse_cpu: true\nnum_students: 2\nlearning_rate: 1e-2\ninner_betas: [0.5,"
        " 1e-1]\nwindow: null\nsave_strategy: no\neval_strategy: steps\n"
    )
    settings, args = parse_arguments(TYPES, path, [])
    assert (settings.num_students, args.learning_rate, args.inner_betas) == (2, 0.01, [0.5, 0.1])
    assert (args.save_strategy, args.eval_strategy) == ("no", "steps")


def test_the_recipe_of_a_summary_that_python_distilled_needs_a_data_set(
    tmp_path, sequences, tokenizer
):
    tiny_trainer(tmp_path / "out", sequences, tokenizer).save_model(tmp_path / "summary")
    recipe = str(tmp_path / "summary" / "recipe.yaml")
    with pytest.raises(ValueError, match=r"^dataset=None: .* give --dataset$"):
        parse("--config", recipe)
    settings, args = parse("--config", recipe, "--dataset", "sample")
    assert (settings.dataset, args.num_sequences) == ("sample", 4)


def test_the_help_names_every_setting_and_no_line_is_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse("--help")
    screen = capsys.readouterr().out
    assert max(map(len, screen.splitlines())) <= 80
    words = " ".join(screen.split())
    for name, setting in FarziConfig.settings.items():
        assert f"--{name} {' '.join(setting.help.split())}" in words
