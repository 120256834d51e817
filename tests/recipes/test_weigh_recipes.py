"""The recipes that compare ways to choose rows, and mixtures of sources, on small pools."""

from __future__ import annotations

import gzip
import json

import mixture
import numpy as np
import weigh

from farzi_hf.data import load_sample_text

TINY = (
    "--of_each 40 --target_rows 12 --test_rows 12 --keep 30 --steps 4 --batch_size 6 --width 8"
    " --trainings 2 --outer_steps 1 --quiet"
)


def test_all_ways_are_compared_and_a_run_goes_on(tmp_path, capsys):
    command = ["--pool", "sample", "--output_dir", str(tmp_path), *TINY.split()]
    weigh.main(command)
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "sample-target-0" / "table.json").read_text())["rows"]
    of = {row["method"]: row for row in rows}
    assert of["oracle"]["of the wanted kind"] == "30"
    assert of["all rows"]["rows"] == "120"
    assert {row["rows"] for name, row in of.items() if name != "all rows"} == {"30"}
    assert len(rows) == 10
    assert "The rows are those of" in printed
    assert "Smoothness(predicted=" in printed
    weigh.main(command)
    again = json.loads((tmp_path / "sample-target-0" / "table.json").read_text())["rows"]
    assert again == rows


def test_a_pool_holds_what_it_says(tmp_path):
    args = weigh.parse(["--pool", "sample", *TINY.split()])
    pool = weigh.sample(args, np.random.default_rng(0), tmp_path)
    assert pool.sources == ["clean"] * 40 + ["shuffled"] * 40 + ["others"] * 40
    texts = [row["text"] for row in pool.rows.own]
    clean = set(texts[:40])
    held_out = {row["text"] for part in (pool.target, pool.dev, pool.test) for row in part.own}
    assert len(held_out) == 36
    assert not held_out & clean
    assert all(len(set(text.split())) > 1 for text in texts[40:80])
    assert pool.is_wanted == [True] * 40 + [False] * 80


def test_sources_by_targets_and_their_mixtures(tmp_path, capsys):
    folder = tmp_path / "instructions"
    folder.mkdir()
    texts = load_sample_text(150)["train"]["text"]

    def write(name: str, chosen: list[str], sources: list[str]) -> None:
        rows = [
            {
                "prompt": " ".join(text.split()[:2]),
                "completion": " ".join(text.split()[2:]),
                "source": f"{sources[i % len(sources)]}_template",
            }
            for i, text in enumerate(chosen)
        ]
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    write("pool", texts[:60], ["gsm8k", "cosmos", "trec"])
    for number, name in enumerate(("gsm8k", "cosmos")):
        write(f"{name}_dev", texts[60 + 20 * number :][:10], [name])
        write(f"{name}_test", texts[70 + 20 * number :][:10], [name])
    mixture.main(
        [
            *("--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")),
            *("--targets", "gsm8k", "cosmos", "--rows", "50", "--steps", "4", "--width", "8"),
            *("--batch_size", "4", "--vocab_size", "300", "--outer_steps", "1"),
            *("--trainings", "2"),
        ]
    )
    printed = capsys.readouterr().out
    assert "| trec" in printed
    rows = json.loads((tmp_path / "out" / "cosmos.json").read_text())
    of = {row["shares"]: row for row in rows}
    assert of["its own source alone"]["share of its own source"] == "1.00"
    assert of["equal shares"]["share of its own source"] == "0.33"
    assert "mixture, 1 outer steps" in of
    assert (tmp_path / "out" / "matrix" / "groups.png").exists()
