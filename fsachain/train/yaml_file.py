"""Tables of options from YAML, read so that no file can hang or fill the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsachain.errors import ConfigError, require

MAX_BYTES = 1 << 15  # a configuration is a page or two
MAX_DEPTH = 20
MAX_VALUES = 800  # each becomes a kilobyte of objects, and half a millisecond, before it is an option


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file whose top is a table of options.

    Plain data alone: no Python objects, no aliases (with which a short file can stand for a huge one), no key
    twice in a table.

    Raises:
        ConfigError: the file cannot be read, is too long or nested too deep, has an alias or a key twice, or is
            not such a table.
    """
    yaml = require("yaml", extra="recipes")
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: more than {MAX_BYTES} bytes; expected a table of options")
        text = content.decode("utf-8")
        _refuse_bombs(yaml, text, path)
        _refuse_repeated_keys(yaml, yaml.compose(text, Loader=yaml.SafeLoader), path)
        table = yaml.safe_load(text)
    except ConfigError:
        raise
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
    ) as error:  # ValueError: a date that is none, a number too long
        raise ConfigError(f"{path}: cannot read the options: {' '.join(str(error).split())}") from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a table of options, got {type(table).__name__}")
    return table


def _refuse_bombs(yaml: Any, text: str, path: str | Path) -> None:
    """Aliases, depth and number, found on the stream of events, which nothing has been built from yet."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if number > MAX_VALUES:
            line = event.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: more than {MAX_VALUES} values; expected a table of options")
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: the alias *{event.anchor}; expected plain values, written out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{path}:{event.start_mark.line + 1}: nested deeper than {MAX_DEPTH}; expected a table of options"
            )


def _refuse_repeated_keys(yaml: Any, node: Any, path: str | Path) -> None:
    """YAML keeps the last of two equal keys without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ConfigError(f"{path}:{key.start_mark.line + 1}: the key {key.value!r} occurs twice")
                seen.add(key.value)
            _refuse_repeated_keys(yaml, value, path)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_repeated_keys(yaml, value, path)
