"""`farzi weigh`: rows of a user's data are chosen for a target, shown and saved; and how rows of
every kind are read.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from datasets import load_dataset
from test_attribute_command import HISTORIES, interactions
from tiny_models import config_of
from transformers import AutoModelForCausalLM

from farzi_hf import FarziData
from farzi_hf.attribution import Attribution, choice
from farzi_hf.cli import main
from farzi_hf.cli import weigh as command
from farzi_hf.cli.own_rows import text_rows
from farzi_hf.data import IGNORED, load_sample_text, word_tokenizer
from farzi_hf.data.tokenizer_file import load_tokenizer

TEMPLATE = "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' ; ' }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with its tokenizer, prompts with completions, and a target."""
    folder = tmp_path_factory.mktemp("weigh")
    texts = load_sample_text(120)["train"]["text"]
    tokenizer = word_tokenizer([*texts, "user assistant : ;"], 120)
    tokenizer.save_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_config(config_of("gpt2", len(tokenizer)))
    model.save_pretrained(folder / "model")

    def write(name: str, chosen: list[str]) -> None:
        rows = [
            {"prompt": " ".join(text.split()[:2]), "completion": " ".join(text.split()[2:])}
            for text in chosen
        ]
        rows = [{**row, "source": "ab"[i % 2]} for i, row in enumerate(rows)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("data.jsonl", texts[:30])
    write("target.jsonl", texts[30:50])
    write("test.jsonl", texts[50:60])
    return folder


SHORT = [
    *("--use_cpu", "True", "--disable_tqdm", "True", "--max_steps", "3"),
    *("--adam_epsilon", "1e-2", "--learning_rate", "1e-2", "--dataloader_pin_memory", "False"),
]
WAYS = ["--outer_steps", "1", "--trainings", "2"]


def weigh(folder, output, *more: str) -> None:
    target = ["--target", str(folder / "target.jsonl"), "--output_dir", str(output)]
    main(
        ["weigh", str(folder / "model"), str(folder / "data.jsonl"), *target, *SHORT, *WAYS, *more]
    )


def test_rows_are_chosen_shown_and_saved(folder, tmp_path, capsys):
    weigh(folder, tmp_path / "out", "--keep", "20%", "--licence", "mit")
    printed = capsys.readouterr().out
    table = re.findall(r"^\| ([^|]+?) +\| +(\d+) \|", printed, flags=re.M)
    rows = dict(table)
    assert rows.pop("all rows") == "30"
    assert set(rows.values()) == {"6"}
    assert len(rows) == 11
    assert "comes true" in printed
    assert "rows of DATA too" not in printed
    farzi = FarziData.from_pretrained(tmp_path / "out")
    assert farzi.weights.shape == (30,)
    assert int((farzi.weights > 0).sum()) == 6
    assert f"The rows are those of '{farzi.results.metrics['chosen by']}'" in printed
    kept = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"]
    assert kept.column_names == ["prompt", "completion", "source", "weight"]
    assert [path.name for path in tmp_path.iterdir()] == ["cache", "out"] or {
        path.name for path in tmp_path.iterdir()
    } == {"cache", "out"}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "# 6 rows, with weights, of data.jsonl" in card
    assert "with 95 % intervals over trainings" in card
    assert "bootstrap" not in card
    assert kept[0]["completion"] not in card


def has_row_of_all(printed, way):
    """Whether the table has a row of that way, with all 30 rows of the pool."""
    return re.search(rf"^\| {way} +\| +30 \|", printed, flags=re.M)


def test_with_groups_mixtures_of_them_are_compared_too(folder, tmp_path, capsys):
    weigh(folder, tmp_path / "out", "--group", "source")
    printed = capsys.readouterr().out
    for name in (
        "equal shares of groups",
        "shares of groups by n-gram importance",
        "shares of groups by influence in one training, power 2",
        "mixture, 1 outer steps",
        "mixture, 1 outer steps, from the best shares",
    ):
        assert has_row_of_all(printed, name)
    said = re.search(r"The shares of groups: ([ab]) ([\d.]+)%, ([ab]) ([\d.]+)%", printed)
    assert {said[1], said[3]} == {"a", "b"}
    assert float(said[2]) + float(said[4]) == pytest.approx(100, abs=0.2)
    farzi = FarziData.from_pretrained(tmp_path / "out")
    assert int((farzi.weights > 0).sum()) == 30
    mixture = farzi.results.metrics["mixture"]
    assert sum(mixture.values()) == pytest.approx(1)
    assert f"{mixture[said[1]]:.1%}" == f"{said[2]}%"
    # Where all rows stay, a way that only cuts has nothing to say.
    assert "random rows" not in printed
    assert not re.search(r"^\| gradient cosine", printed, flags=re.M)


def test_it_says_whether_the_smoother_training_would_be_better(
    folder, tmp_path, capsys, monkeypatch
):
    """The model learns nothing at a hundredth of the rate, and much more at ten times of it."""
    for share, advice in ((0.01, "keep your own"), (10, "use these")):

        def gentler(trainings, targets, warm, share=share):
            optimizer = trainings.replay.optimizer
            return trainings.with_optimizer(replace(optimizer, lr=share * optimizer.lr)), []

        monkeypatch.setattr(command, "smooth_enough", gentler)
        weigh(folder, tmp_path / advice, "--keep", "20%", "--learning_rate", "1e-3")
        said = re.sub(r"\s+", " ", capsys.readouterr().out)
        [line] = re.findall(r"Weights were learnt with .*? with your own [\d.]+: [a-z ]+\.", said)
        assert f"--learning_rate {share * 1e-3:g} --adam_epsilon 0.01 in place" in line
        assert line.endswith(f"{advice}.")


def test_where_all_rows_stay_shares_of_rows_are_compared(folder, tmp_path, capsys):
    weigh(folder, tmp_path / "out", "--keep", "100%")
    printed = capsys.readouterr().out
    for name in (
        "all rows",
        "shares of rows by n-gram importance",
        "shares of rows by gradient cosine, power 2",
        "shares of rows by features, 1 outer steps, from the best cheap choice",
        "1 outer steps",
    ):
        assert has_row_of_all(printed, name)
    farzi = FarziData.from_pretrained(tmp_path / "out")
    chosen = farzi.results.metrics["chosen by"]
    assert f"The rows are those of '{chosen}'" in printed
    assert int((farzi.weights > 0).sum()) == 30


@pytest.mark.slow
def test_it_goes_on_where_it_was_killed(folder, tmp_path, monkeypatch, capsys):
    written = choice._KeptChoices.write

    def killed(self, chooser, chosen):
        written(self, chooser, chosen)
        if chosen.method == "gradient cosine":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(choice._KeptChoices, "write", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            weigh(folder, tmp_path / "out", "--keep", "6")
    parts = tmp_path / ".out-parts"
    assert len(list(parts.glob("choice-*"))) == 5
    measured = []
    losses = choice.losses
    monkeypatch.setattr(choice, "losses", lambda *given: measured.append(1) or losses(*given))
    weigh(folder, tmp_path / "out", "--keep", "6")
    assert len(measured) == 7
    assert not parts.exists()
    weigh(folder, tmp_path / "whole", "--keep", "6")
    first, second = (FarziData.from_pretrained(tmp_path / name) for name in ("out", "whole"))
    assert torch.equal(first.weights, second.weights)


def test_a_target_may_have_a_test_part_of_its_own(folder, tmp_path, capsys):
    rows = (folder / "test.jsonl").read_text() + (folder / "data.jsonl").read_text()
    (tmp_path / "test.jsonl").write_text("\n".join(rows.splitlines()[:12]))  # two of the pool
    weigh(folder, tmp_path / "out", "--target_test", str(tmp_path / "test.jsonl"))
    printed = capsys.readouterr().out
    assert "Perplexity of 12 rows of the target" in printed
    assert "2 of 32 rows of the target are rows of DATA too." in printed


def test_rows_of_interactions_are_users(tmp_path, capsys):
    model = AutoModelForCausalLM.from_config(config_of("sasrec", 5, max_length=3))
    model.save_pretrained(tmp_path / "model")
    data = interactions(tmp_path / "data.csv", HISTORIES)
    users = {f"user{i}": "".join(history) for i, history in enumerate(["abcd", "bcda"] * 4)}
    target = interactions(tmp_path / "target.csv", users)
    out = ["--target", target, "--output_dir", str(tmp_path / "out"), "--keep", "2"]
    main(["weigh", str(tmp_path / "model"), data, *out, *SHORT, *WAYS])
    farzi = FarziData.from_pretrained(tmp_path / "out")
    assert farzi.config.num_rows == 4
    assert all(len(row["items"]) == 4 for row in farzi.as_dataset())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--keep", "x%"), r"--keep 'x%' is not a number; give 500, 0\.1 or 10%"),
        (("--keep", "31"), "keep=31: there are 30 rows"),
        (("--keep", "200%"), r"--keep '200%' is more than all rows; give at most 100%"),
        (("--keep", "0%"), r"keep=0\.0: there are 30 rows"),
        (
            ("--max_steps", "1", "--warmup_steps", "1"),
            "trainer: no row has an influence on the target; give more steps",
        ),
        (("--trainings", "1"), "--trainings must be an integer of at least 2, got 1"),
        (("--outer_steps", "0"), "--outer_steps must be an integer of at least 1, got 0"),
        (("--label_smoothing_factor", "0.1"), "trainer cannot be replayed: its first gradient"),
    ],
)
def test_bad_input_ends_in_one_line(folder, tmp_path, more, message):
    with pytest.raises(SystemExit, match=f"farzi weigh: .*{message}"):
        weigh(folder, tmp_path / "out", *more)
    assert not (tmp_path / "out" / "farzi.safetensors").exists()


def test_one_row_is_no_choice(folder, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"prompt": "a b", "completion": "a"}\n')
    command = ["weigh", str(folder / "model"), str(tmp_path / "one.jsonl"), "--target"]
    with pytest.raises(SystemExit, match="has a train_dataset of 1 row: give two or more, to"):
        main(
            [*command, str(folder / "target.jsonl"), "--output_dir", str(tmp_path / "out"), *SHORT]
        )


def test_a_folder_that_is_taken_stays(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(SystemExit, match="exists already and is not empty: choose another folder"):
        weigh(folder, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


# -- how rows are read -----------------------------------------------------------------------------


def read(tmp_path, rows: list[dict], column: str | None = None, **template: str):
    tokenizer = word_tokenizer(["a b c d e f user assistant : ;"], 20)
    tokenizer.chat_template = template.get("template")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = text_rows(str(file), column, tokenizer, 64)
    predicted = None
    if found.labels is not None:
        predicted = [
            tokenizer.convert_ids_to_tokens([x for x in row if x != IGNORED])
            for row in found.labels
        ]
    return [tokenizer.convert_ids_to_tokens(ids) for ids in found.ids], predicted, found.own


def test_of_a_prompt_and_its_completion_the_completion_is_predicted(tmp_path):
    rows = [{"prompt": "a b", "completion": "c d"}, {"prompt": "a", "completion": ""}]
    ids, predicted, own = read(tmp_path, rows)
    assert ids == [["<s>", "a", "b", "c", "d", "</s>"]]
    assert predicted == [["c", "d", "</s>"]]
    assert own == rows[:1]


def test_of_a_chat_the_answers_are_predicted(tmp_path):
    chat = [
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "a c"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e f"},
    ]
    ids, predicted, own = read(tmp_path, [{"messages": chat}], template=TEMPLATE)
    words = "user : a b ; assistant : a c ; user : d ; assistant : e f ;"
    assert ids == [["<s>", *words.split(), "</s>"]]
    assert predicted == [["a", "c", ";", "e", "f", ";"]]
    assert own == [{"messages": chat}]
    ids, predicted, _ = read(tmp_path, [{"messages": chat}], "messages", template=TEMPLATE)
    assert predicted is None


def test_an_answer_that_stands_in_the_words_around_it_is_found_behind_them(tmp_path):
    """Such as "a", which "assistant" begins with, or a word of the question."""
    chat = [
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "user : a ;"},
        {"role": "assistant", "content": " a\n"},
    ]
    _, predicted, _ = read(tmp_path, [{"messages": chat}], template=TEMPLATE)
    assert predicted == [["a", ";", "a", ";"]]


def test_tools_that_a_chat_may_call_are_written_and_not_predicted(tmp_path):
    template = "{% for t in tools or [] %}{{ t.name }} ; {% endfor %}" + TEMPLATE
    chat = [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]
    tools = [{"name": "e"}, {"name": "f"}]
    rows = [
        {"messages": chat, "tools": tools},
        {"messages": chat, "tools": json.dumps(tools)},
        {"messages": chat, "tools": None},
    ]
    ids, predicted, _ = read(tmp_path, rows, template=template)
    words = ["user", ":", "d", ";", "assistant", ":", "e", ";"]
    assert ids == [
        ["<s>", *before, *words, "</s>"] for before in (["e", ";", "f", ";"],) * 2 + ([],)
    ]
    assert predicted == [["e", ";"]] * 3


def test_of_a_prompt_and_a_completion_that_are_messages_the_answer_is_predicted(tmp_path):
    """As TRL has conversations: earlier answers stand in the prompt."""
    prompt = [
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "a c"},
        {"role": "user", "content": "d"},
    ]
    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": "e f"}]}
    ids, predicted, own = read(tmp_path, [row], template=TEMPLATE)
    words = "user : a b ; assistant : a c ; user : d ; assistant : e f ;"
    assert ids == [["<s>", *words.split(), "</s>"]]
    assert predicted == [["e", "f", ";"]]
    assert own == [row]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{"role": "user", "content": "a"}], "completion": "b"},
        {"prompt": "a", "completion": ["b"]},
        {"messages": "a b"},
        {"messages": ["a", "b"]},
    ],
)
def test_what_is_no_list_of_messages_is_named_with_its_row(tmp_path, row):
    with pytest.raises(ValueError, match=r"row 0 .*no list of messages, each with role and cont"):
        read(tmp_path, [row], template=TEMPLATE)


def test_a_prompt_that_is_no_text_is_named_with_its_row(tmp_path):
    row = {"prompt": {"question": "a"}, "completion": "b"}
    with pytest.raises(ValueError, match=r"row 0 .*prompt and completion hold {'question': 'a'}"):
        read(tmp_path, [row])


def test_a_file_without_rows_is_called_empty(tmp_path):
    with pytest.raises(ValueError, match=r"rows\.jsonl' is empty: give a file with rows"):
        read(tmp_path, [])


def test_a_message_may_have_no_content(tmp_path):
    """Such as one that calls a tool."""
    template = "{% for m in messages %}{{ m.role }} : {{ m.content | default('d') }} ; {% endfor %}"
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "content": "e"},
    ]
    _, predicted, _ = read(tmp_path, [{"messages": chat}], template=template)
    assert predicted == [["e", ";"]]


def test_rows_whose_answer_is_cut_off_are_counted(tmp_path, capsys):
    """A prompt may be longer than what is read of a row."""
    long = {"prompt": "a b c d e f " * 20, "completion": "a b"}
    ids, _, _ = read(tmp_path, [long, {"prompt": "a", "completion": "c"}, long])
    assert len(ids) == 1
    said = capsys.readouterr().out
    assert (
        "rows.jsonl: 2 rows left out, because what is to be predicted begins after the 64" in said
    )
    with pytest.raises(
        ValueError, match=r"begins after the 64 tokens .*all of 2 rows; raise --max"
    ):
        read(tmp_path, [long, long])
    with pytest.raises(ValueError, match="has no rows with something to predict; name the"):
        read(tmp_path, [{"prompt": "a", "completion": ""}])


def test_a_text_is_predicted_whole(tmp_path):
    rows = [{"text": "a b", "kind": 1}, {"text": " ", "kind": 2}, {"text": "c", "kind": 3}]
    ids, predicted, own = read(tmp_path, rows)
    assert ids == [["<s>", "a", "b", "</s>"], ["<s>", "c", "</s>"]]
    assert predicted is None
    assert [row["kind"] for row in own] == [1, 3]


# -- farzi attribute with groups -------------------------------------------------------------------


def test_groups_and_targets_are_scored_and_printed(folder, tmp_path, capsys):
    tests = ["--test", str(folder / "target.jsonl"), "--test", str(folder / "test.jsonl")]
    how = [*SHORT[:6], "--output_dir", str(tmp_path / "out"), "--trainings", "2"]
    command = ["attribute", str(folder / "model"), str(folder / "data.jsonl"), *tests]
    main([*command, "--group", "source", *how])
    printed = capsys.readouterr().out
    found = Attribution.load(tmp_path / "out")
    assert found.queries == ["target.jsonl", "test.jsonl"]
    assert found.group_names == ["a", "b"]
    assert found.group_scores_of_trainings.shape == (2, 2, 2)
    assert "| group | rows |" in printed
    assert re.search(r"^\| [ab] +\| +15 \|", printed, flags=re.M)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    main([*command, "--clusters", "3", *how[:6], "--output_dir", str(tmp_path / "clusters")])
    names = Attribution.load(tmp_path / "clusters").group_names
    assert 1 < len(names) <= 3
    assert all(name.startswith("like row ") for name in names)
    with pytest.raises(SystemExit, match=r"--by_file: all rows are of 'data.jsonl'; give a folder"):
        main([*command, "--by_file", *how[:6], "--output_dir", str(tmp_path / "x")])
    with pytest.raises(
        SystemExit,
        match=r"--group 'kind': row 0 has none; its columns are 'prompt'.*such as 'other'",
    ):
        main([*command, "--group", "kind", *how[:6], "--output_dir", str(tmp_path / "x")])
    with pytest.raises(
        SystemExit, match="--trainings 2 cannot be combined with --check or --per_token"
    ):
        main([*command, "--check", *how[:6], "--output_dir", str(tmp_path / "x"), *how[-2:]])


def test_the_files_of_a_folder_are_groups(folder, tmp_path, capsys):
    lines = (folder / "data.jsonl").read_text().splitlines(keepends=True)
    parts = tmp_path / "parts"
    for name, first, last in (("a.jsonl", 0, 10), ("more/a.jsonl", 10, 30)):
        (parts / name).parent.mkdir(exist_ok=True, parents=True)
        (parts / name).write_text("".join(lines[first:last]))
    with (parts / "a.jsonl").open("a") as file:  # blank rows are in no group
        file.write(json.dumps({"prompt": "a", "completion": " ", "source": "a"}) + "\n")
    test = ["--test", str(folder / "test.jsonl"), "--queries", "3"]
    command = ["attribute", str(folder / "model"), str(parts), *test, "--by_file", *SHORT[:6]]
    main([*command, "--output_dir", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert re.search(r"^\| a.jsonl +\| +10 \|", printed, flags=re.M)
    assert re.search(r"^\| more/a.jsonl +\| +20 \|", printed, flags=re.M)
    found = Attribution.load(tmp_path / "out")
    means = [found.scores[:, :10].mean(1), found.scores[:, 10:].mean(1)]
    torch.testing.assert_close(found.group_scores, torch.stack(means, 1).to(found.group_scores))
    tokenizer = load_tokenizer(str(folder / "model"))
    rows = text_rows(str(parts), None, tokenizer, 64)
    assert rows.own == [json.loads(line) for line in lines]  # no column of ours
    assert rows[8:12].files == ["a.jsonl"] * 2 + ["more/a.jsonl"] * 2
