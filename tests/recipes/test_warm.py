"""The tables of students that begin with the teacher's tables: each start sets what it says, and
each student is made once.
"""

from __future__ import annotations

import csv

import pytest
import torch
from tiny_models import V

pytest.importorskip("matplotlib")
import warm

from farzi_hf.summary import FarziData
from farzi_hf.tasks import LanguageModeling


def carrier() -> FarziData:
    """With a teacher of width 8."""
    return FarziData.from_teacher(model_of(warm.gpt2(8)), sequence_length=8, storage="exact")


def model_of(settings: dict):
    from transformers import AutoConfig, AutoModelForCausalLM

    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(**{**settings, "vocab_size": V, **special})
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("start", ["zeros", "random inputs", "rotation", "repeated"])
@pytest.mark.parametrize("width", [12, 16, 20])
def test_a_wider_student_has_the_products_of_the_teachers_tables(start, width):
    farzi = carrier()
    student = model_of(warm.gpt2(width))
    values = warm.STARTS[start](farzi, student, 3)
    tables = warm.tables_of(farzi.teacher)
    inputs = values["transformer.wte.weight"]
    head = values["lm_head.weight"]
    assert inputs.shape == head.shape == (V, width)
    torch.testing.assert_close(inputs @ head.T, tables.inputs @ tables.head.T)


def test_silent_layers_leave_the_teacher_as_it_is():
    farzi = carrier()
    student = model_of(warm.gpt2(8, layers=2))
    values = warm.STARTS["with layers, others silent"](farzi, student, 0)
    with torch.no_grad():
        for name, x in student.named_parameters():
            if name in values:
                x.copy_(values[name])
    ids = torch.arange(1, 7)[None]
    torch.testing.assert_close(student(ids).logits, farzi.teacher(ids).logits)


def test_one_table_alone_is_set():
    farzi = carrier()
    student = model_of(warm.llama(8))
    head = {"lm_head.weight"}
    assert warm.STARTS["head alone"](farzi, student, 0).keys() == head
    assert warm.STARTS["inputs alone"](farzi, student, 0).keys().isdisjoint(head)
    assert warm.STARTS["random"](farzi, student, 0) == {}


@pytest.mark.usefixtures("small_data")
def test_a_part_is_a_table_and_each_student_is_made_once(
    carried_summary, tmp_path, monkeypatch, capsys
):
    cells = [
        warm.Cell("GPT-2 32", "warm", "drawn", 2, 4),
        warm.Cell("RNN 64", "random", "written", 2, 4, schedule="linear"),
        warm.Cell("RNN 64", "warm", "drawn", 2, 4, matched=1.0),
    ]
    monkeypatch.setitem(warm.PARTS[LanguageModeling], "few", cells)
    argv = [str(carried_summary), "--part", "few", "--card_dir", str(tmp_path / "card")]
    warm.main(argv)
    with (tmp_path / "card" / "few" / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [cell.name for cell in cells]
    assert {row["students"] for row in rows} == {"2"}
    trained = warm.Bench._made
    monkeypatch.setattr(warm.Bench, "_made", None)
    warm.main(argv)
    monkeypatch.setattr(warm.Bench, "_made", trained)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        warm.main([*argv[:2], "none", *argv[3:]])
    assert "--part 'none' is unknown" in str(stop.value.code)
