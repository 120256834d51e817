"""Data of one's own through the front door: which folder, which settings, what is said."""

from __future__ import annotations

import pytest
import yaml
from tiny_recipes import leave_out_figures, search_shortly, use_small_data

pytest.importorskip("matplotlib")
from farzi_hf import FarziData
from farzi_hf.cli import main
from farzi_hf.report import RunSettings, suggestion

GPT2 = (
    '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "embd_pdrop": 0.0,'
    ' "attn_pdrop": 0.0, "resid_pdrop": 0.0}'
)
OPTIONS = ("--learner", GPT2, "--minutes", "1", "--use_cpu", "true", "--disable_tqdm", "true")


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """Trials of few steps, in a working directory of their own."""
    search_shortly(monkeypatch, students=((4, 4, 0.02, "drawn"),))
    use_small_data(monkeypatch)
    leave_out_figures(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_one_command_ends_with_a_verdict_and_a_second_one_goes_on(tmp_path, capsys, monkeypatch):
    loads, load = [], RunSettings.load
    monkeypatch.setattr(RunSettings, "load", lambda settings: loads.append(1) or load(settings))
    lines = [
        f"{'a big' if i % 2 else 'the small'} {animal} {verb} {where} {i % 7}"
        for i in range(40)
        for animal in ("dog", "cat", "cow")
        for verb in ("sees", "likes")
        for where in ("here", "there")
    ]
    (tmp_path / "mine.txt").write_text("\n".join(lines), encoding="utf-8")
    main(["distil", "mine.txt", *OPTIONS])
    said = capsys.readouterr()
    assert len(loads) == 1  # the data are read and tokenized once
    assert "rows of text" in said.err
    assert "a teacher is a small model that trains on your data" in said.err
    assert "perplexity: lower is better." in said.err
    assert "left] " in said.err  # the time of the whole run
    assert "orth it" in said.out
    # of which the verdict's last line writes SUMMARY
    assert "The SUMMARY is farzi-mine. Next: farzi show farzi-mine," in said.out
    folder = tmp_path / "farzi-mine"
    farzi = FarziData.from_pretrained(folder / "summary")
    assert farzi.results.metrics["verdict"] in said.out
    card = (folder / "summary" / "README.md").read_text(encoding="utf-8")
    assert "orth it" in card.partition("## How to use it")[0]
    main(["distil", "mine.txt", *OPTIONS])  # the same data go on in the same folder
    assert "left] " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["farzi-mine"]
    student = ["--output_dir", "student", "--steps", "2"]
    main(["train", "farzi-mine", "--evaluate", "--data", "mine.txt", *student])
    assert "\nVerdict: " in capsys.readouterr().out
    (tmp_path / "mine.txt").write_text("\n".join(lines[:-40]), encoding="utf-8")
    main(["suggest", "mine.txt", *OPTIONS])  # other data have another
    assert (tmp_path / "farzi-mine-2" / "config.yaml").is_file()
    capsys.readouterr()
    main(["distil", "mine.txt", *OPTIONS, "--bytes", "1kB", "--dry_run"])  # so have other wishes
    assert "would go to farzi-mine-3" in " ".join(capsys.readouterr().out.split())


def test_suggest_prints_a_config_that_needs_no_trials(tmp_path, capsys, monkeypatch):
    main(["suggest", "sample", "--output_dir", "out", *OPTIONS, "--seed", "3"])
    said = capsys.readouterr()
    assert "| trial" in said.err
    config = yaml.safe_load(said.out)
    assert {"dataset": "sample", "labels": "teacher", "seed": 3}.items() <= config.items()
    assert said.out == (tmp_path / "out" / "config.yaml").read_text(encoding="utf-8")
    assert said.out.startswith("# learner: gpt2")
    (tmp_path / "config.yaml").write_text(said.out, encoding="utf-8")
    monkeypatch.setattr(suggestion, "Search", None)
    main(["distil", "config.yaml", "--output_dir", "again", "--baselines", "head"])
    assert "orth it" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    main(["distil", "sample", "--dry_run"])
    assert "farzi-sample" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "--bytes", "much"], "--bytes 'much' is not a size"),
        (["sample", "--minutes", "0"], "minutes=0"),
        (
            ["sample", "--minutes", "ten"],
            "^farzi distil: --minutes: invalid float value: 'ten'; give a number, such as 10",
        ),
        (["sample", "--minutes"], "--minutes: expected one argument"),
        (
            ["sample", "--max_length", "long"],
            "--max_length: invalid int value: 'long'; give a whole number",
        ),
        (["sample", "--bytes", "1,5MB"], "--bytes '1,5MB' is not a size"),
        (
            ["sample_interactions", "--splits", "0", "1"],
            r"splits=\[0, 1\]: the trials see one split",
        ),
        (["sample", "--output_dir", "taken"], "output_dir='taken' is not empty"),
        (["sample", "--config", "x.yaml"], "--config is for a run without DATA"),
        (["no-such.yaml"], "'no-such.yaml' is neither a file nor an example"),
        ([], "DATA is missing: give a file"),
        (["-"], "DATA is '-', but standard input is not read: save it in a file"),
        (["--minutes", "1", "sample"], "the first word is '--minutes', and options come after"),
        (["sample", "--minutes", "inf"], "minutes=inf is not usable: give a positive number"),
        (["sample", "--labels", "zz"], "labels='zz' is unknown; choose one of shared, own, te"),
        (["https://x.y/z.txt"], "'https://x.y/z.txt' is an address, which is not fetched: downl"),
        (
            ["sample", "--learner", '{"model_type": "gpt2", "n_embd": -1}'],
            r"learner=\{.*\} makes no model \(.*\): give arguments of AutoConfig",
        ),
    ],
)
def test_wrong_words_are_named(tmp_path, words, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(SystemExit, match=message):
        main(["distil", *words])


def test_options_with_hyphens_count(tmp_path, capsys):
    """They were read, and had no effect."""
    main(["distil", "sample", "--dry-run", "--output-dir", "mine", "--sequence-length", "7"])
    said = capsys.readouterr().out
    assert "would go to mine" in said
    assert "rows of 7 ids in the summary" in said


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"farzi suggest: .*file"):
        main(["suggest", "sample", "--output_dir", "file/run"])


def test_a_dry_run_of_a_config_writes_nothing(tmp_path, capsys):
    """`--dry_run` was unknown there, and the hint was `--do_train`."""
    main(["distil", "demo", "--dry_run", "--output_dir", "mine"])
    assert "would go to mine" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_help_says_which_command_distils(capsys):
    main(["suggest", "--help"])
    assert "It does not distil." in " ".join(capsys.readouterr().out.split())
    main(["distil", "--help"])
    assert "whether it was worth it." in " ".join(capsys.readouterr().out.split())


def test_a_misspelt_option_of_the_front_door_gets_a_hint():
    with pytest.raises(SystemExit, match=r"'--byte' is not an option.*--bytes"):
        main(["distil", "sample", "--byte", "10kB"])
