"""The corpus of a recipe, prepared, and `fsachain run` on it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.asr.cli import EXIT_LEFT_OUT, call, describe, exit_status
from fsachain.asr.decode.wer import read_text, write_text
from fsachain.asr.train.world import World
from fsachain.errors import FsachainError
from recipes.pipeline.corpus import GRAMMAR, RESCORING, SPLITS, prepare_data_dirs

REPOSITORY = Path(__file__).resolve().parents[2]
PREPARED = "prepared.json"  # what the data in this folder was made of
DONE = (0, EXIT_LEFT_OUT)  # exit statuses
Prepare = Callable[[Path | None, Path, int], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m recipes RECIPE ...`; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    names = sorted(path.parent.name for path in (REPOSITORY / "recipes").glob("*/config.yaml"))
    parser = argparse.ArgumentParser(prog="python -m recipes", add_help=given[:1] in ([], ["-h"], ["--help"]))
    parser.add_argument("recipe", choices=names, help="its options: python -m recipes RECIPE --help")
    recipe = parser.parse_known_args(given)[0].recipe
    folder, prepare = REPOSITORY / "recipes" / recipe, prepare_data_dirs
    if (folder / "prepare.py").is_file():
        prepare = import_module(f"recipes.{recipe}.prepare").prepare
    return run_recipe(folder, prepare, given[1:])


def run_recipe(
    recipe: Path, prepare: Prepare, arguments: Sequence[str], made_of: Mapping[str, Any] | None = None
) -> int:
    """Prepare the corpus where that is not done, then run all stages; returns the exit status of `fsachain run`.

    `recipe` is the folder with config.yaml; `prepare` writes the corpus (`recipes.pipeline.corpus`), and `made_of` is what
    it depends on beside its arguments. Under torchrun the first process prepares, and the others wait for it.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes {recipe.name}",
        allow_abbrev=False,
        epilog="All other options are those of `fsachain run`: --set, --from, --to, --workers, ...",
    )
    parser.add_argument("--corpus", default="", help="folder of the corpus, see the recipe's README")
    parser.add_argument("--exp", type=Path, help="folder for all outputs (default exp/RECIPE)")
    parser.add_argument("--config", type=Path, default=recipe / "config.yaml", help="YAML configuration")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default 1)")
    parser.add_argument(
        "--shuffle-transcripts",
        action="store_true",
        help="control: train on the transcripts of other utterances; the WER must collapse",
    )
    options, others = parser.parse_known_args(arguments)
    exp = options.exp or REPOSITORY / "exp" / recipe.name
    data, corpus = exp / "data", Path(options.corpus) if options.corpus else None
    sources = {"corpus": options.corpus, "seed": options.seed, "shuffled": options.shuffle_transcripts}
    wanted = json.dumps({**sources, **(made_of or {})})
    prepared = data / PREPARED
    try:
        with World.from_environment() as world, world.first("the corpus"):
            if not prepared.is_file() or prepared.read_text(encoding="utf-8") != wanted:
                print("--- prepare", flush=True)
                prepared.unlink(missing_ok=True)
                prepare(corpus, data, options.seed)
                if options.shuffle_transcripts:
                    shuffle(data / "train" / "text", options.seed)
                prepared.write_text(wanted, encoding="utf-8")
    except (FsachainError, OSError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return exit_status(error)
    inputs = [f"--{split}={data / split}" for split in SPLITS]
    for option, name in (("lexicon", "lexicon.txt"), ("arpa", GRAMMAR), ("rescore", RESCORING)):
        if (data / name).is_file():
            inputs.append(f"--{option}={data / name}")
    return call(["run", str(exp), *inputs, f"--config={options.config}", f"--seed={options.seed}", *others])


def shuffle(path: Path, seed: int) -> None:
    """Give utterances the transcripts of others."""
    text = read_text(path)
    transcripts = list(text.values())
    order = np.random.default_rng(seed).permutation(len(text))
    write_text(path, dict(zip(text, [transcripts[i] for i in order], strict=True)))
    print("control: the training transcripts belong to other utterances")
