"""The command line: verbs only. Each parses, calls, prints."""
