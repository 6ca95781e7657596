"""The command line: parsing of arguments and printing, nothing else. Each command is imported when it is called."""
