"""The command line: `farzi distil CONFIG`, `farzi show SUMMARY`, `farzi train SUMMARY`, `farzi push SUMMARY REPO`.

What recipes share with it is here too: settings from YAML, what a run may write into its folder, and the run itself.
"""

from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run

__all__ = ["ends_in_one_line", "keep_freed_memory", "parse_arguments", "run"]
