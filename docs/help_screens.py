"""Writes `farzi_hf/cli/help.json`: the help screens that `farzi` shows without an
import of torch.
"""

import io
import json
import os
from contextlib import redirect_stdout, suppress
from importlib import import_module

from farzi_hf.cli import COMMANDS, FRONT, SCREENS


def screens() -> dict[str, str]:
    """The help screens of the commands that argparse makes, as wide as they are."""
    found = {}
    for name in COMMANDS.keys() - {*FRONT}:
        with redirect_stdout(io.StringIO()) as screen, suppress(SystemExit):
            import_module(f"farzi_hf.cli.{name}").command(["--help"])
        found[name] = screen.getvalue()
    return found


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100000"
    SCREENS.write_text(
        json.dumps(screens(), indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
