"""Calls that have to be refused."""

import pytest


def refuses(error, message, call, /, *arguments, **options):
    """The call raises this error, whose message is one line and has this pattern."""
    __tracebackhide__ = True
    with pytest.raises(error, match=rf"\A.*(?:{message}).*\Z"):
        call(*arguments, **options)
