"""The JSON form of a context tree: what its constructor takes, and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fsachain.errors import GraphError
from fsachain.files import parse_json, write_text
from fsachain.graph.decisions import DecisionTree
from fsachain.graph.topology import Topology

JSON_FORMAT = "fsachain-context-tree-1"


def write_record(path: str | os.PathLike[str], fields: dict[str, Any]) -> None:
    """Write the fields of a context tree; `read_record` reads them."""
    record = {"format": JSON_FORMAT, **fields}
    record["topology"] = fields["topology"].to_dict()
    record["context_independent"] = sorted(fields["context_independent"])
    if fields["decisions"] is None:  # as files of trees without tying have always been
        del record["decisions"], record["central_position"]
    else:
        record["decisions"] = fields["decisions"].to_list()
    write_text(path, json.dumps(record, ensure_ascii=False, indent=1))


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `ContextTree` for the file that `write_record` wrote.

    Raises:
        GraphError: the file is not a context tree.
    """
    try:
        record = parse_json(Path(path).read_bytes(), str(path))
        if record["format"] != JSON_FORMAT:
            raise GraphError(f"{path}: format {record['format']!r}, expected {JSON_FORMAT!r}")
        decisions = record.get("decisions")
        return {
            "phones": tuple(record["phones"]),
            "topology": Topology.from_dict(record["topology"]),
            "context_width": record["context_width"],
            "shared": tuple(tuple(phones) for phones in record["shared"]),
            "context_independent": frozenset(record["context_independent"]),
            "decisions": None if decisions is None else DecisionTree.from_list(decisions),
            "central_position": record.get("central_position", -1),
        }
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{path}: not a context tree written by fsachain ({error!r})") from error
