"""Makes the summary that comes with the library, `farzi_hf.sample()`: of the embedded corpus, with
the settings of `make demo`.

    python recipes/sample.py

Of the folder of the summary, the files stay that loading needs. It takes two minutes.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ptb import main as distil

from farzi_hf import sample

CONFIG = Path(__file__).resolve().parent / "configs" / "demo.yaml"
FILES = ("config.json", "farzi.safetensors", "tokenizer.json", "recipe.yaml")


def main(argv: Sequence[str] | None = None) -> None:
    """Distils, and puts the files into the library."""
    home = Path(sample())
    with tempfile.TemporaryDirectory() as scratch:
        distil(["--config", str(CONFIG), "--output_dir", scratch, *(argv or ())])
        home.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(Path(scratch) / "summary" / name, home / name)


if __name__ == "__main__":
    main()
