"""The command line: a table of commands, exit codes, and one-line errors."""

from drafterforge.cli.help import HELP
from drafterforge.cli.run import main
from drafterforge.cli.table import COMMANDS

__all__ = ["COMMANDS", "HELP", "main"]
