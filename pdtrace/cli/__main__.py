"""`python -m pdtrace.cli`: the `pdtrace` command where no script is installed. Owns nothing else."""

from pdtrace.cli.main import main

if __name__ == "__main__":
    main()
