"""The command line: one command a file. Commands parse, call and show; they decide nothing."""
