"""The command ``niccolite``, as an entry point and as ``python -m niccolite``."""

import os
import sys


def main() -> None:
    """Becomes the command of the package."""
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "niccolite")
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
