"""Results that a recipe keeps, so that a later start does not make them again: see `farzi_hf.cli.run_folder.kept`."""

from farzi_hf.cli.run_folder import kept, stored

__all__ = ["kept", "stored"]
