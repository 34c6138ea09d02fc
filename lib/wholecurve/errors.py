"""The one exception that the command line turns into one line."""


class UserError(ValueError):
    """Something the user gave is wrong. The message says what, where (file, field, row) and what would be right."""
