"""`python -m drafterforge` is the `drafterforge` command."""

import sys

from drafterforge.cli import main

if __name__ == "__main__":
    sys.exit(main())
