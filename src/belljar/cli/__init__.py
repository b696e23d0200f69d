"""The command line: one file a command. `main` finds the command, and only that command's file is imported."""
