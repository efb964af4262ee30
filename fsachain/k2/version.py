"""The version of k2 whose names and behaviour this package follows, for programs that print it."""

__version__ = "1.24.4+fsachain"
__build_type__ = "fsachain"
__git_sha1__ = ""
__git_date__ = ""
