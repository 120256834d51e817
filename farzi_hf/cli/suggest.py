"""`farzi suggest DATA`: chooses settings by short trials, and prints them as a config."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from farzi_hf.cli.front_door import FrontDoor, check_data
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.report.trials import leaderboard


def command(argv: Sequence[str], began: float | None = None) -> None:
    """The YAML goes to stdout; what was read, the trials and their table go to stderr. For `began`
    see `FrontDoor`.
    """
    keep_freed_memory()
    with ends_in_one_line("farzi suggest", FileExistsError, NotADirectoryError, PermissionError):
        check_data(argv, "a file, a folder or a data set of the Hub, such as mine.txt")
        with redirect_stdout(sys.stderr):
            door = FrontDoor(argv, goes_on=True, began=began)
            if door.options.dry_run:
                print(door.plan())
                return
            found = door.choose()
            print(f"\n{leaderboard(found.trials)}\n")
        print(door.config(found), end="")
