"""Distils a text data set, compares the summary with real data, and saves an artefact that anyone
can load.

    accelerate launch recipes/ptb.py                                        # Penn Treebank, configs/ptb_teacher.yaml
    accelerate launch recipes/ptb.py --config recipes/configs/demo.yaml     # the embedded corpus, a few minutes
    accelerate launch recipes/ptb.py --data_dir FOLDER --inner_steps 100    # any field of the YAML can be overridden

If you start the script again, it goes on from the last checkpoint in `output_dir`. It writes
`table.md`, `table.csv`, `plots/` and the artefact, `summary/`, into this folder. The artefact's
`recipe.yaml` is a config for this script. `farzi distil CONFIG` does the same as this script.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import Distillation, report
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import RunSettings

CONFIG = Path(__file__).resolve().parent / "configs" / "ptb_teacher.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Every process distils; the first one compares, prints and writes."""
    keep_freed_memory()
    with ends_in_one_line("ptb.py"):
        settings, args = parse_arguments((RunSettings, FarziConfig), CONFIG, argv)
        data = settings.load()  # tokenizer and splits; read when they are first needed

        # The folder is checked before any work. `begin` makes the trainer: learner, summary at its
        # start, real sentences.
        this = Distillation(data, args, args.seed)
        done = this.finished()  # a run that is over already is only shown again
        if not done:
            this.begin()

    if not done:
        done = distilled(this)
    if this.is_first:
        report(data, args, [done])  # table.md, table.csv, and the table on the terminal


def distilled(this: Distillation) -> dict[str, Any]:
    """Distils, and measures students on the summary and on real data."""
    # Students on the start of the summary, which all processes make together.
    before = this.at_start()
    this.trainer.train(resume_from_checkpoint=this.checkpoint)
    if not this.is_first:
        return {}
    this.save()  # now, because the measurements take long
    # Rows on the summary and to compare with; results and figures in the artefact.
    measured = this.measure(before)
    return this.finish(measured, this.verdict(measured))


if __name__ == "__main__":
    run(main)
