"""`python -m fluxsched`: the command, for a checkout that is not installed."""

from fluxsched.cli.main import main

if __name__ == "__main__":
    main()
