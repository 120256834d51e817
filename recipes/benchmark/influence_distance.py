"""How far do scores see? Retrainings that leave out 1, 5, 20 and 50 % of the sequences, and what
becomes of a model without the worst sequences.

    python recipes/benchmark/influence_distance.py --data_dir FOLDER          # Penn Treebank
    python recipes/benchmark/influence_distance.py --dataset sample

GPT-2 of one layer, tied and untied, three learning rates, and some with a larger ε of Adam, which
makes training smooth, or in the derivative alone. `pip install farzi-hf[bench]` adds TRAK. Each
score is judged as in `attribution.py`: the rank correlation of predicted and true test loss over
retrainings. `slope` is that of the true change over the predicted one. Then sequences are chosen by
the scores, and models with other starts and orders train on them as long as before; held-out
sequences that the scores have not seen judge them. All is kept in `output_dir`, seed by seed, so a
run that was stopped goes on.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from influence import CARDS, EXACT, RANDOM, RULE, AttributionProblem, parse, resampled, say
from torch import Tensor

from farzi_hf.attribution import WeightedTraining, influence
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.data import minibatches
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.engine import Tape
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text

FILES = ("table.json", "table.md", "table.csv")
SHARES = (0.01, 0.05, 0.2, 0.5)
HALVES = 4
FRESH = 2
USE = 2
"""Seeds, the first ones, of choices."""
SETTINGS = {
    f"{name}, lr {rate:g}"
    + f", ε {epsilon:g}" * (epsilon > 1e-6)
    + f", T {steps}" * (steps > 100): (name == "tied", rate, epsilon, steps)
    for name, rate, epsilon, steps in (
        *((name, rate, 1e-6, 100) for name in ("tied", "untied") for rate in (1e-3, 3e-3, 1e-2)),
        ("tied", 3e-3, 1e-4, 100),
        ("tied", 3e-3, 1e-2, 100),
        ("tied", 1e-2, 1e-2, 100),
        ("tied", 3e-3, 1e-6, 400),
        ("tied", 3e-3, 1e-2, 400),
    )
}
OVER_HALVES = f"exact, mean over {HALVES} random halves"
OVER_SEEDS = "exact, mean over seeds"
OVER_STEPS = "exact, mean after 80 and 100 % of the steps"
DAMPED = "exact, ε {:g} in the derivative alone"
DAMPINGS = (1e-3, 1e-2)
CHOICES = {"without the lowest": (0.05, 0.1, 0.2), "the highest": (0.3,)}
DEFAULTS = (
    "--num_train",
    "256",
    "--num_test",
    "200",
    "--longest",
    "16",
    "--vocab_size",
    "300",
    "--batch_size",
    "8",
    "--steps",
    "100",
    "--momentum",
    "0.9",
    "--retrainings",
    "20",
    "--output_dir",
    "outputs/attribution_distance",
)


class DistanceProblem(AttributionProblem):
    """One setting: the trainings, their scores, and retrainings at all distances."""

    @classmethod
    def of(
        cls, argv: Sequence[str], name: str, like: DistanceProblem | None = None
    ) -> DistanceProblem:
        """That of a setting, with the data of another one."""
        tied, rate, epsilon, steps = SETTINGS[name]
        learner = {
            "model_type": "gpt2",
            "n_embd": 48,
            "n_layer": 1,
            "n_head": 4,
            "tie_word_embeddings": tied,
        }
        own = (
            "--learner",
            json.dumps(learner),
            "--learning_rate",
            str(rate),
            "--epsilon",
            str(epsilon),
            "--steps",
            str(steps),
        )
        _, data, args, _ = parse([*DEFAULTS, *own, *argv])
        if like is not None:
            like, data = data, copy(like.data)
            data.settings = like.settings
        folder = re.sub(", (lr|ε|T) ", "_", name)
        return cls(data, replace(args, output_dir=str(Path(args.output_dir, folder))))

    @property
    def steps(self) -> int:
        return self.args.steps[0]

    def scores(self, seed: int) -> dict[str, list[float]]:
        """(n,) of each method for one seed; kept."""

        def made() -> dict[str, list[float]]:
            training = self.training(seed, self.steps)
            halves = [
                influence(training, self.test, weights=w, adjoint=Tape())
                for w in self._halves(seed)
            ]
            found = {
                EXACT: influence(training, self.test, adjoint=Tape()),
                OVER_HALVES: torch.stack(halves).mean(0),
            }
            return {
                method: x.tolist()
                for method, x in (found | self.simple_scores(seed, training)).items()
            }

        return self.kept(f"seed-{seed}/scores", made)

    def more(self, seed: int) -> dict[str, list[float]]:
        """The same of what may see farther, damped derivatives and that of the loss before the end,
        and of TRAK.
        """

        def made() -> dict[str, list[float]]:
            training = self.training(seed, self.steps)
            early = influence(
                replace(training, batches=training.batches[: self.steps * 4 // 5]),
                self.test,
                adjoint=Tape(),
            )
            found = {OVER_STEPS: (early + torch.tensor(self.scores(seed)[EXACT])) / 2}
            for epsilon in (x for x in DAMPINGS if x > self.args.epsilon):
                damped = replace(training, optimizer=replace(training.optimizer, damping=epsilon))
                found[DAMPED.format(epsilon)] = influence(damped, self.test, adjoint=Tape())
            return {method: x.tolist() for method, x in found.items()}

        found = self.kept(f"seed-{seed}/at-a-distance", made)
        return found | (
            self.kept(f"seed-{seed}/trak", lambda: self.by_trak(seed, self.steps))
            if find_spec("trak")
            else {}
        )

    def _halves(self, seed: int) -> Tensor:
        """(k, n): weights of trainings on random halves, which no retraining has."""
        n = len(self.train_ids)
        places = [
            stream(derive(seed, Purpose.LEFT_OUT), Purpose.LEFT_OUT, k).permutation(n)[: n // 2]
            for k in range(HALVES)
        ]
        return torch.stack([torch.ones(n).index_fill(0, torch.from_numpy(x), 0.0) for x in places])

    def at(self, share: float) -> DistanceProblem:
        """The same, of retrainings without another share."""
        return DistanceProblem(self.data, replace(self.args, left_out=share))

    def changes(self, seed: int, share: float) -> list[float]:
        """(1 + K,): the test loss of the training and of each retraining; kept."""

        def made() -> list[float]:
            training = self.training(seed, self.steps)
            weights = 1.0 - self.at(share).left_out(seed).float()
            with torch.no_grad():
                everything = [torch.ones_like(weights[0]), *weights]
                return [
                    float(training.learner.hard_loss(training.train(w), self.test))
                    for w in everything
                ]

        return self.kept(f"seed-{seed}/without-{share:g}", made, "retrainings")

    def use(self, seed: int) -> list[dict[str, Any]]:
        """A row for each choice: the mean loss on other held-out sequences, of fresh trainings on
        what it leaves; kept.
        """

        def made() -> list[dict[str, Any]]:
            n = len(self.train_ids)
            rows = []
            held_out = self.collated(self._drawn("validation", 400))
            orders = {
                name: np.argsort(x)
                for name, x in self.scores(seed).items()
                if name in (EXACT, OVER_HALVES, RANDOM)
            }
            parts = [
                (name, share, slice(round(share * n), n))
                for name in orders
                for share in CHOICES["without the lowest"]
            ]
            parts += [
                (name, -share, slice(n - round(share * n), n))
                for name in orders
                for share in CHOICES["the highest"]
            ]
            for name, share, part in [("all", 0.0, slice(0, n)), *parts]:
                chosen = torch.from_numpy(orders.get(name, np.arange(n))[part].copy())
                fresh = [
                    self._fresh(chosen, derive(seed, Purpose.REAL_STUDENT, k)) for k in range(FRESH)
                ]
                with torch.no_grad():
                    losses = [
                        float(self.learner.hard_loss(training.train(), held_out))
                        for training in fresh
                    ]
                rows.append({"by": name, "without": share, "loss": float(np.mean(losses))})
            return rows

        return self.kept(f"seed-{seed}/use", made)

    def _fresh(self, chosen: Tensor, seed: int) -> WeightedTraining:
        """A training on some of the sequences, with another start and order."""
        training = self.training(seed, self.steps)
        return replace(
            training,
            batches=chosen[minibatches(len(chosen), self.args.batch_size, self.steps, seed)],
        )


def main(argv: Sequence[str] | None = None) -> None:
    """All settings, then the card."""
    keep_freed_memory()
    torch.set_num_threads(1)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dataset", default="ptb")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--card_dir")
    known, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    folder = Path(known.card_dir or CARDS / f"attribution_distance_{known.dataset}")
    rest = [*rest, "--dataset", known.dataset]
    with ends_in_one_line("influence_distance.py"):
        check_outputs(folder, FILES)
        problems: dict[str, DistanceProblem] = {}
        for name in SETTINGS:
            problems[name] = DistanceProblem.of(rest, name, next(iter(problems.values()), None))
    for name in sorted(SETTINGS, key=lambda name: -SETTINGS[name][2]):  # what is of use first
        for seed in known.seeds:
            problems[name].scores(seed)
            for share in SHARES:
                problems[name].changes(seed, share)
            say(f"seed {seed}: {name}")
    write(folder, problems, known.seeds)


def write(folder: Path, problems: dict[str, DistanceProblem], seeds: Sequence[int]) -> None:
    """The card: a table for each share, one of slopes, one of choices."""
    rows = [row for name, problem in problems.items() for row in judged(name, problem, seeds)]
    shown = []
    for share in SHARES:
        own = [row for row in rows if row["left_out"] == share]
        cells = {
            (row["method"], row["setting"]): "{:.2f} ({:.2f}–{:.2f})".format(
                row["lds"], *row["lds_interval"]
            )
            for row in own
        }
        shown.append((f"Rank correlation, retrainings without {share:.0%}", table(cells)))
    short: dict[tuple[str, str], list[float]] = {}
    for row in (row for row in rows if SETTINGS[row["setting"]][2:] == (1e-6, 100)):
        short.setdefault((row["method"], f"{row['left_out']:.0%}"), []).append(row["lds"])
    means = {
        key: f"{np.mean(x):.2f} ± {2 * np.std(x, ddof=min(1, len(x) - 1)) / len(x) ** 0.5:.2f}"
        for key, x in short.items()
    }
    if means:
        shown.append(
            (
                "Rank correlation, T = 100, ε 1e-6 (mean, and 2 standard errors over settings)",
                table(means),
            )
        )
    slopes = {
        (f"{row['left_out']:.0%}", row["setting"]): f"{row['slope']:.2f}"
        for row in rows
        if row["method"] == EXACT
    }
    slopes |= {("test loss with all", row["setting"]): f"{row['loss']:.3f}" for row in rows}
    shown.append(("Slope of true over predicted changes, exact influence", table(slopes)))
    used = [
        {"setting": name, "seed": seed, **row}
        for name, problem in problems.items()
        for seed in seeds[:USE]
        for row in problem.use(seed)
    ]
    for kind, is_smooth in (("ε = 1e-6", False), ("larger ε", True)):
        if own := [row for row in used if ("ε" in row["setting"]) == is_smooth]:
            title = (
                f"Held-out loss, less that of all sequences, {kind} (mean, and 2 standard errors"
                " over seeds and settings)"
            )
            shown.append((title, markdown(choices(own))))
    args = next(iter(problems.values())).args
    facts = {
        "sequences": (
            f"{args.num_train} of at most {args.longest} ids, {args.batch_size} a step;"
            f" {args.num_test} test sequences"
        ),
        "T": "100 where nothing else is said",
        "optimizer": (
            f"Adam, ε 1e-6 where nothing else is said, betas {args.momentum:g} and 0.999, cosine"
        ),
        "seeds": len(seeds),
        "retrainings per seed": args.retrainings,
        "torch": torch.__version__,
    }
    parts = "\n\n".join(f"**{title}**\n\n{body}" for title, body in shown)
    save_json({"scores": rows, "use": used, **facts}, folder / FILES[0])
    save_text(f"# How far scores see\n\n{listed(facts)}\n\n{parts}\n\n{RULE}\n", folder / FILES[1])
    save_csv(rows, folder / FILES[2])
    say(parts)


def judged(name: str, problem: DistanceProblem, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each share and method."""
    scores = [problem.scores(seed) | problem.more(seed) for seed in seeds]
    rows = []
    if len(seeds) > 1:
        mean = np.mean([found[EXACT] for found in scores], 0).tolist()
        scores = [{**found, OVER_SEEDS: mean} for found in scores]
    for share in SHARES:
        out = [problem.at(share).left_out(seed) for seed in seeds]
        losses = [problem.changes(seed, share) for seed in seeds]
        for method in scores[0]:
            pairs = list(zip(out, scores, losses, strict=True))
            values = np.stack(
                [resampled(left, found[method], true[1:]) for left, found, true in pairs]
            )
            predicted = np.concatenate(
                [
                    (left.double() @ torch.tensor(found[method]).double()).numpy()
                    for left, found, _ in pairs
                ]
            )
            change = np.concatenate([np.array(true[1:]) - true[0] for _, _, true in pairs])
            rows.append(
                {
                    "setting": name,
                    "left_out": share,
                    "method": method,
                    "seeds": len(pairs),
                    "lds": values[:, 0].mean(),
                    "lds_interval": np.quantile(values[:, 1:].mean(0), (0.025, 0.975)).tolist(),
                    "slope": float(predicted @ change / (predicted @ predicted)),
                    "change": float(change.mean()),
                    "loss": float(np.mean([true[0] for true in losses])),
                    "predicted": float(predicted.mean()),
                }
            )
    return rows


def table(cells: dict[tuple[str, str], str]) -> str:
    """Rows by the first part of a key, columns by the second."""
    names, columns = (dict.fromkeys(parts) for parts in zip(*cells, strict=True))
    return markdown(
        [
            {"": name, **{column: cells.get((name, column), "") for column in columns}}
            for name in names
        ]
    )


def choices(used: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each way to choose, a column for each share."""
    full = {(row["setting"], row["seed"]): row["loss"] for row in used if row["by"] == "all"}
    lines = []
    for by in (EXACT, OVER_HALVES, RANDOM):
        line = {"": by}
        for kind, shares in CHOICES.items():
            for share in shares:
                without = share if kind == "without the lowest" else -share
                x = [
                    row["loss"] - full[row["setting"], row["seed"]]
                    for row in used
                    if (row["by"], row["without"]) == (by, without)
                ]
                line[f"{kind} {share:.0%}"] = (
                    f"{np.mean(x):+.3f} ±"
                    f" {2 * np.std(x, ddof=min(1, len(x) - 1)) / len(x) ** 0.5:.3f}"
                )
        lines.append(line)
    return lines


if __name__ == "__main__":
    run(main)
