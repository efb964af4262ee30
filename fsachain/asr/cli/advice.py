"""What a file or folder holds: for the message when a command expected something else there. Light: reads names alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_KALDI_MODELS = ("0.trans_mdl", "final.mdl")
_KALDI_MODEL = b"\0B<TransitionModel>"
_OUR_LANG = ("lexicon.json", "tree.npz")
_OUR_GRAPHS = ("den.fst", "tree.npz")
_OUR_MODEL = "model.safetensors"


def _has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def _is_kaldi_lang(path: Path) -> bool:
    return _has(path, "phones.txt") and any(_has(path, name) for name in ("L.fst", "L_disambig.fst", "topo"))


def _is_kaldi_model_folder(path: Path) -> bool:
    return any(_has(path, name) for name in _KALDI_MODELS)


def _is_kaldi_model(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_KALDI_MODEL)) == _KALDI_MODEL


def _is_data(path: Path) -> bool:
    return _has(path, "text") and any(_has(path, name) for name in ("wav.scp", "feats.scp"))


# The first that holds is told. {0} is the path; a model folder of Kaldi may hold phones.txt, as its lang does.
_FOLDERS: tuple[tuple[Callable[[Path], bool], str], ...] = (
    (lambda path: _has(path, *_OUR_LANG), "it is a language folder, for --lang"),
    (lambda path: _has(path, *_OUR_GRAPHS), "it has the denominator graph, for --den"),
    (
        lambda path: _has(path / "model", _OUR_MODEL),
        "it is the folder of `fsachain run`, with {0}/lang, {0}/graphs and {0}/model",
    ),
    (lambda path: _has(path, _OUR_MODEL), "it has a trained model, {0}/model.safetensors"),
    (
        lambda path: (path / "checkpoints").is_dir(),
        "its training has not ended: give the command of `fsachain train` again",
    ),
    (
        _is_kaldi_model_folder,
        "it is a model folder of Kaldi: `fsachain kaldi lang LEXICON {0} OUT` makes a language folder of it, and `fsachain "
        "kaldi den {0}/den.fst OUT --lang LANG` the denominator graph",
    ),
    (
        _is_kaldi_lang,
        "it is a lang folder of Kaldi: `fsachain kaldi lang LEXICON MODEL_DIR OUT` makes a language folder of Kaldi's "
        "lexicon and model folder",
    ),
    (_is_data, "it is a data directory"),
)
_FILES: tuple[tuple[Callable[[Path], bool], str], ...] = (
    (
        _is_kaldi_model,
        "it is a model of Kaldi, whose network is not read: `fsachain kaldi lang` takes over its phones and tree",
    ),
    (
        lambda path: path.name == "den.fst" and (path.parent / "tree.npz").is_file(),
        "it is the denominator graph: give its folder, {0.parent}",
    ),
    (
        lambda path: path.name == "den.fst",
        "it is a denominator graph of Kaldi: `fsachain kaldi den {0} OUT --lang LANG` takes it over",
    ),
)


def advice(path: Path) -> str:
    """Return "; it is ..." for a path that is known to be something else than what was asked for, else nothing."""
    with suppress(OSError):
        for holds, told in _FOLDERS if path.is_dir() else _FILES if path.is_file() else ():
            if holds(path):
                return f"; {told.format(path)}"
    return ""
