"""The application's fixtures, for the tests in this folder."""

from cli_fixtures import built, fsachain, recorded, serve, stages, trained  # noqa: F401
