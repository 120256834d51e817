"""The program `farzi`: what each command leaves, says and refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from tiny_recipes import leave_out_figures, use_small_data
from transformers import AutoModelForCausalLM

pytest.importorskip("matplotlib")
from docs.help_screens import screens
from farzi_hf import FarziConfig, FarziData, FarziDataConfig
from farzi_hf.cli import COMMANDS, SCREENS, main
from farzi_hf.cli.arguments import example_configs, parse_arguments
from farzi_hf.data import TEXTS, load_sample_text
from farzi_hf.report import RunSettings, TaskData

# huggingface_hub uploads large files in a way that its HTTP client calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")
SIZES = {
    "dataset": "sample",
    "vocab_size": 50,
    "inputs": "soft",
    "labels": "shared",
    "num_sequences": 4,
    "sequence_length": 8,
    "latent_dim": 4,
    "concentration": 4.0,
    "show_rows": True,
    "inner_steps": 4,
    "synthetic_batch_size": 2,
    "max_steps": 2,
    "num_students": 1,
    "eval_students": 1,
    "teacher_steps": 6,
    "baselines": ["full"],
    "learner": {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1},
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}


@pytest.fixture(scope="module")
def distilled(tmp_path_factory) -> Path:
    """The folder of a run of `farzi distil`."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(SIZES), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch)
        main(
            ["distil", str(folder / "tiny.yaml"), "--output_dir", str(folder / "run"), "--compare"]
        )
    return folder / "run"


def test_distil_leaves_a_table_figures_and_a_loadable_summary(distilled):
    assert {"table.md", "table.csv", "results.json", "recipe.yaml"} <= {
        path.name for path in distilled.iterdir()
    }
    table = (distilled / "table.md").read_text(encoding="utf-8")
    assert [line.split("|")[1].strip() for line in table.split("\n\n")[0].splitlines()[2:]] == [
        "Farzi [4×8]",
        "Farzi, 0 outer steps",
        "Farzi, stock Trainer",
        "full data",
        "unigram",
        "interpolated bigram",
        "Kneser-Ney 3-gram, counted",
    ]
    farzi = FarziData.from_pretrained(distilled / "summary")
    # It logged nothing, so there is no curve; rows are asked for, and the sample's licence is free.
    assert set(farzi.results.plots) == {"comparison.png", "tokens.png"}
    assert (distilled / "summary" / "viewer.html").exists()
    assert farzi.results.metrics["command"] == "farzi distil recipe.yaml"


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        (
            {"labels": "own", "max_steps": 0, "inner_optimizer": "sgd"},
            ["Farzi [4×8]", "Farzi, stock Trainer"],
        ),
        (
            {"labels": "own", "input_sequences": "real_windows"},
            ["Farzi [4×8]", "same inputs, teacher's labels", "Farzi, stock Trainer"],
        ),
    ],
)
def test_labels_of_their_own_go_through_the_whole_house(tmp_path, monkeypatch, changes, rows):
    """Without outer steps the start is the summary. The card says what its inputs are, and teachers
    count as time of the distillation.
    """
    use_small_data(monkeypatch)
    leave_out_figures(monkeypatch)
    own = {
        name: value
        for name, value in SIZES.items()
        if name not in ("inputs", "labels", "concentration", "show_rows")
    } | changes
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    main(["distil", str(tmp_path / "own.yaml"), "--output_dir", str(tmp_path / "run"), "--compare"])
    table = (tmp_path / "run" / "table.md").read_text(encoding="utf-8")
    assert [line.split("|")[1].strip() for line in table.split("\n\n")[0].splitlines()[2:]] == [
        *rows,
        "full data",
        "unigram",
        "interpolated bigram",
        "Kneser-Ney 3-gram, counted",
    ]
    card = (tmp_path / "run" / "summary" / "README.md").read_text(encoding="utf-8")
    assert ("The inputs are made up" in card) == ("input_sequences" not in changes)
    assert ("The inputs are sequences of the data" in card) == ("input_sequences" in changes)
    farzi = FarziData.from_pretrained(tmp_path / "run" / "summary")
    assert ("This card prints no rows" in card) == ("input_sequences" in changes)
    assert ("tokens.png" in farzi.results.plots) == ("input_sequences" not in changes)
    assert farzi.results.metrics["distillation_seconds"] > 0
    assert farzi.results.metrics["outer_steps"] == own["max_steps"]
    if not own["max_steps"]:
        main(
            [
                "train",
                str(tmp_path / "run" / "summary"),
                "--evaluate",
                "--output_dir",
                str(tmp_path / "student"),
            ]
        )
        assert (
            AutoModelForCausalLM.from_pretrained(tmp_path / "student").config.model_type == "gpt2"
        )


def test_a_summary_that_is_gone_is_made_again(distilled, tmp_path, monkeypatch, capsys):
    """The results stayed, so the command said where to load it, and that was all."""
    use_small_data(monkeypatch)
    leave_out_figures(monkeypatch)
    output = Path(shutil.copytree(distilled, tmp_path / "run"))
    before = FarziData.from_pretrained(output / "summary").fingerprint()
    command = [
        "distil",
        str(distilled.parent / "tiny.yaml"),
        "--output_dir",
        str(output),
        "--compare",
    ]
    main(command)
    assert "is gone" not in capsys.readouterr().err
    shutil.rmtree(output / "summary")
    main(command)
    assert capsys.readouterr().err.count(f"{output}/summary is gone: it is made again\n") == 1
    assert FarziData.from_pretrained(output / "summary").fingerprint() == before
    assert FarziData.from_pretrained(output / "summary").results.metrics["table"]
    main(command)
    assert "is gone" not in capsys.readouterr().err


def test_results_of_other_data_are_not_those_of_a_run(distilled, tmp_path, monkeypatch):
    """A folder of data may have other files by now, or `data_dir` may name another folder."""
    output = shutil.copytree(distilled, tmp_path / "run")
    monkeypatch.setitem(TEXTS, "sample", lambda data_dir: load_sample_text(200, seed=1))
    with pytest.raises(
        SystemExit,
        match=r"train_dataset\.fingerprint \w+ → \w+: a run goes on with its own settings",
    ):
        main(["distil", str(distilled.parent / "tiny.yaml"), "--output_dir", str(output)])


def test_a_test_split_that_cannot_be_read_is_found_before_the_distillation(tmp_path, monkeypatch):
    use_small_data(monkeypatch)
    small = TaskData.splits

    def splits(self, seed):
        found = small(self, seed)
        found["test"] = Dataset.from_dict({"input_ids": [[5] * 2000]})
        return found

    monkeypatch.setattr(TaskData, "splits", splits)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SIZES), encoding="utf-8")
    with pytest.raises(
        SystemExit,
        match=r"test split: dataset\['input_ids'\]\[0\] has 2000 ids, but the learner reads",
    ):
        main(["distil", str(tmp_path / "tiny.yaml"), "--output_dir", str(tmp_path / "run")])
    assert not list((tmp_path / "run").iterdir())


def test_show_prints_positions_and_results(distilled, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    main(["show", str(distilled / "summary"), "--sequences", "1", "--positions", "3"])
    shown = capsys.readouterr().out
    assert "4 × 8" in shown
    assert [f"0, {j}" in shown for j in range(4)] == [True, True, True, False]
    assert "interpolated bigram" in shown


def test_show_prints_labels_of_their_own(tmp_path, capsys):
    config = FarziDataConfig(2, 3, 16, 9, inputs="tokens", labels="own", label_dim=5)
    FarziData(config).save_pretrained(tmp_path / "own")
    main(["show", str(tmp_path / "own")])
    shown = capsys.readouterr().out
    assert re.search(r"numbers per position \W*5\b", shown)
    assert "its label" in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_show_is_no_wider_than_the_terminal(distilled, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    main(["show", str(distilled / "summary"), "--top_k", "9"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "perplexity" in shown
    metrics = json.loads((distilled / "summary" / "metrics.json").read_text("utf-8"))
    names = [row["method"] for row in metrics["table"]]
    is_whole = "more, in metrics.json" not in shown
    assert is_whole == (width > 60)
    assert all(name.split()[0] in shown for name in names)


@pytest.mark.parametrize("learner", [None, LLAMA])
def test_train_saves_a_model_that_loads_and_says_how_it_does(
    distilled, tmp_path, capsys, monkeypatch, learner
):
    use_small_data(monkeypatch)
    chosen = ["--learner", json.dumps(learner)] if learner else []
    main(
        [
            "train",
            str(distilled / "summary"),
            *chosen,
            "--output_dir",
            str(tmp_path / "student"),
            "--evaluate",
        ]
    )
    assert "test_perplexity" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
    assert model.config.model_type == (learner or SIZES["learner"])["model_type"]
    before = {path: path.read_bytes() for path in (tmp_path / "student").iterdir()}
    with pytest.raises(
        SystemExit, match=r"farzi train: --output_dir '.*student' exists already and is not empty"
    ):
        main(["train", str(distilled / "summary"), "--output_dir", str(tmp_path / "student")])
    assert {path: path.read_bytes() for path in (tmp_path / "student").iterdir()} == before


BERT = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (BERT, "--learner makes a BertLMHeadModel .*, which sees the future"),
        (
            {**SIZES["learner"], "n_positions": 8},
            "--learner makes a model that does not read [0-9]+ positions",
        ),
        (
            {**SIZES["learner"], "vocab_size": 20},
            "--learner: vocab_size=20, but the data have 54; leave vocab_size out",
        ),
        (
            {**SIZES["learner"], "n_layers": 2},
            "--learner: gpt2 has no field 'n_layers': did you mean n_layer?",
        ),
    ],
)
def test_train_refuses_a_learner_that_cannot_be_one(
    distilled, tmp_path, monkeypatch, learner, message
):
    use_small_data(monkeypatch)
    summary, output = str(distilled / "summary"), str(tmp_path / "student")
    with pytest.raises(SystemExit, match=f"farzi train: {message}"):
        main(
            [
                "train",
                summary,
                "--learner",
                json.dumps(learner),
                "--evaluate",
                "--output_dir",
                output,
            ]
        )


def test_push_commits_the_artefact(hub, distilled, capsys):
    main(["push", str(distilled / "summary"), "farzi-cli"])
    assert "/commit/" in capsys.readouterr().out
    assert FarziData.from_pretrained("user/farzi-cli").config.num_sequences == 4


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_on_a_screen(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    with suppress(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert 4 < len(lines) < 90
    assert max(map(len, lines)) <= 150


def test_help_screens_are_those_of_the_commands(monkeypatch):
    """Where this fails, `python docs/help_screens.py` writes them anew."""
    monkeypatch.setenv("COLUMNS", "100000")
    assert json.loads(SCREENS.read_text(encoding="utf-8")) == screens()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["distilll"], "farzi: 'distilll' is not a command: choose from distil"),
        (["distill"], "farzi distil: DATA is missing"),
        (["distil", "no-such.yaml"], "neither a file nor an example: .* demo"),
        (["distil", "demo", "--inner_steps", "0"], "inner_steps=0"),
        (
            ["distil", "demo", "--num_sequence", "3"],
            "'--num_sequence' is not an option: did you mean --num_sequences?",
        ),
        (
            ["distil", "demo", "--lr_scheduler_kwargs", "{x"],
            r"lr_scheduler_kwargs='\{x' is not JSON: ",
        ),
        (["distil", "demo", "--learner", "{x"], r"learner='\{x' is not JSON: "),
        (
            ["distil", "demo", "--learner", '{"model_type": "gpt2", "n_embdd": 8}'],
            "did you mean n_embd?",
        ),
        (["show", "no/such"], "farzi show: .*neither a folder nor a dataset repository"),
        (
            ["show", __file__],
            "farzi show: .* is a file, not a summary; farzi distil DATA makes one",
        ),
        (["train", "no/such", "--steps", "0"], "--steps 0 trains nothing"),
        (["train", "no/such", "--learning_rate", "nan"], "--learning_rate nan trains nothing"),
        (
            ["train", "no/such", "--data", "x"],
            "farzi train: --data 'x' is for --evaluate alone: give both, or neither",
        ),
        (["train", "no/such", "--data_dir", "x"], "farzi train: --data_dir 'x' is for --evaluate"),
        (
            ["train", "no/such", "--tokenizer", "x"],
            "farzi train: --tokenizer 'x' is for --evaluate",
        ),
        (["push", "no/such", "x"], "farzi push: "),
    ],
)
def test_mistakes_end_in_one_line(hub, arguments, message):
    with pytest.raises(SystemExit, match=message) as stop:
        main(arguments)
    assert "\n" not in str(stop.value.code)


def test_examples_are_found_and_help_is_light():
    assert {"demo", "demo_recsys", "ptb_400x50"} <= set(example_configs())
    code = (
        f"from farzi_hf.cli import main; [main([x, '--help']) for x in {list(COMMANDS)}]; main([])"
    )
    code += (
        "; import sys; assert not {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    program = subprocess.run(
        [sys.executable, "-m", "farzi_hf"], check=True, capture_output=True, text=True
    ).stdout
    assert shown.endswith(program)


@pytest.mark.parametrize(("given", "seconds"), [({}, 10), ({"TQDM_MININTERVAL": "3"}, 3)])
def test_progress_bars_write_few_lines_into_a_file(given, seconds, monkeypatch):
    code = (
        "from types import SimpleNamespace; from farzi_hf import cli; find = cli.import_module;"
        "shown = lambda rest: print(find('tqdm.auto').tqdm(range(0)).mininterval);"
        "cli.import_module = lambda name: SimpleNamespace(command=shown) if name.endswith('show')"
        " else find(name); cli.main(['show'])"
    )
    monkeypatch.delenv("TQDM_MININTERVAL", raising=False)
    program = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **given},
    )
    assert float(program.stdout) == seconds


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "model_cards").glob("*/recipe.yaml")),
    ids=lambda path: path.parent.name,
)
def test_the_recipe_of_a_committed_card_is_a_config_still(path, tmp_path):
    settings, args = parse_arguments(
        (RunSettings, FarziConfig), path, ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    )
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert settings.learner == recipe["learner"]
    assert args.num_sequences == recipe["num_sequences"]
    assert args.concentration == recipe.get(
        "concentration", recipe.get("sharpness")
    )  # older cards have the old name


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "farzi_hf", "--help"),
        pytest.param(
            ("-c", "from farzi_hf.cli.program import run; run(lambda: print('x' * 10**6))"),
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGPIPE")
def test_a_closed_pipe_ends_a_program_without_a_traceback(arguments):
    program = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() != 0
