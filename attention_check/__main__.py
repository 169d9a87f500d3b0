"""The command `python -m attention_check`."""

import sys

from attention_check import main

if __name__ == "__main__":
    sys.exit(main())
