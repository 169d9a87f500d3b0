"""Refuse to build pages whose experiments are missing, damaged, or of other code or data; say what to run."""

import sys

from mha_lib.experiments import experiment_names, load_experiment


def main():
    """Load every experiment; the exit status is 1 if one cannot be shown."""
    failed = 0
    for name in experiment_names():
        try:
            load_experiment(name)
        except (FileNotFoundError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
