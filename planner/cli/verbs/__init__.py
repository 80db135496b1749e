"""The verbs of the command line. Each module has `run(args)`, the exit code, and is imported when it is run."""
