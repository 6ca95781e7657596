"""Errors that every layer may raise and users may catch by name."""

from __future__ import annotations


class MisconfigurationException(Exception):
    """The program asks for something that cannot work: the message says what, and what to write instead.

    The name is Lightning's, so that ``except MisconfigurationException`` keeps working in scripts that come from there.
    """


class UnknownChoiceError(MisconfigurationException, ValueError):
    """An argument is none of the words that it may be."""


class MissingFieldError(MisconfigurationException, AttributeError):
    """There is no such field where one is to be set."""


class MissingExtraError(MisconfigurationException, ModuleNotFoundError):
    """A part of hookbus needs a package that is not installed; the message says how to install it."""


class PossibleUserWarning(UserWarning):
    """What may be a mistake, and may be meant so. The name is Lightning's, for those who filter it."""
