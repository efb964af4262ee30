"""The saved form of a context tree: what its constructor takes, as columns of an npz file."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from fsachain.errors import GraphError
from fsachain.files import parse_json, replacing
from fsachain.graph.archive import Arrays, ids, numbers, read_archive
from fsachain.graph.decisions import DecisionTree
from fsachain.graph.phone_sets import PhoneSet, PhoneSets
from fsachain.graph.topology import Topology
from fsachain.graph.tree_nodes import Nodes

NPZ_FORMAT = "fsachain-context-tree-2"
_LONGEST_TOPOLOGY = 1 << 14  # letters of JSON: hundreds of states


def write_record(path: str | os.PathLike[str], fields: dict[str, Any]) -> None:
    """Write the fields of a context tree to exactly `path`; `read_record` reads them.

    Raises:
        GraphError: a topology of thousands of states.
    """
    topology = json.dumps(fields["topology"].to_dict())
    if len(topology) > _LONGEST_TOPOLOGY:
        raise GraphError(
            f"{path}: the topology has {len(fields['topology'].states)} states; expected hundreds"
        )
    sets: PhoneSets = fields["shared"]
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "topology": np.array(topology),
        "phones": np.array(list(fields["phones"]), dtype=np.str_),
        "window": np.array([fields["context_width"], fields["central_position"]], np.int64),
        "shared": sets.members,
        "shared_sizes": np.diff(sets.ends),
        "context_independent": fields["context_independent"].ids,
    }
    if fields["decisions"] is not None:
        nodes = fields["decisions"].nodes
        arrays |= {"heads": np.array(nodes.heads, np.int32), "rows": np.array(nodes.rows, np.int32)}
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `ContextTree` for the file that `write_record` wrote.

    Raises:
        GraphError: the file is not a context tree.
    """
    return read_archive(path, NPZ_FORMAT, _fields, "not a context tree written by fsachain")


def _fields(arrays: Arrays) -> dict[str, Any]:
    topology = arrays["topology"]
    if topology.dtype.itemsize > 4 * _LONGEST_TOPOLOGY:
        raise ValueError(f"the topology has {topology.dtype.itemsize // 4} letters")
    phones = ids(arrays, "phones")
    width, centre = numbers(arrays, "window", np.int64, 2).tolist()
    members = numbers(arrays, "shared", np.int64, len(phones))
    independent = numbers(arrays, "context_independent", np.int64)
    if len(independent) > len(phones):
        raise ValueError(f"context_independent has {len(independent)} ids of {len(phones)} phones")
    decisions = None
    if "heads" in arrays:
        columns = (numbers(arrays, name, np.int32) for name in ("heads", "rows"))
        decisions = DecisionTree(Nodes.of_columns(*columns))
    return {
        "phones": phones,
        "topology": Topology.from_dict(parse_json(topology.item(), "the topology")),
        "context_width": width,
        "shared": PhoneSets(members, numbers(arrays, "shared_sizes", np.int64)),
        "context_independent": PhoneSet(independent),
        "decisions": decisions,
        "central_position": centre,
    }
