"""A few lines about any file or folder that the commands make."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import DataError
from fsachain.fsa import Fsa

_SAFETENSORS = ".safetensors"


def describe_path(path: Path) -> str:
    """What the file or folder is and how large, in a few lines.

    Raises:
        FsachainError: it is of no known kind, or damaged.
    """
    if path.is_dir():
        return describe_folder(path)
    if path.suffix == ".fst":
        return describe_fsa(Fsa.read(path))
    if path.suffix == ".npz":
        from fsachain.graph.chunks import holds_chunks

        return describe_chunks(path) if holds_chunks(path) else describe_numerators(path)
    if path.suffix == _SAFETENSORS:
        return describe_model(path)
    raise DataError(f"{path}: expected a file that ends in .fst, .npz or {_SAFETENSORS}, or a folder")


def describe_folder(path: Path) -> str:
    """A language folder or a data directory."""
    from fsachain.cli.steps.lang import LEXICON, load_lang

    if (path / LEXICON).is_file():
        lang = load_lang(path)
        lexicon, tree = lang.lexicon, lang.tree
        num_pronunciations = sum(len(entries) for entries in lexicon.pronunciations)
        return "\n".join(
            [
                f"language folder: {len(lexicon.words)} words, {num_pronunciations} pronunciations",
                f"phones: {len(lexicon.phones)}, silence {lexicon.silence} ({lexicon.silence_prob:g})",
                f"pdfs: {tree.num_pdfs}, context of {tree.context_width} phones",
            ]
        )
    if not (path / "text").is_file():
        raise DataError(f"{path}: expected a language folder ({LEXICON}) or a data directory (text, wav.scp)")
    data = DataDir.read(path, allow_commands=True)  # nothing is run: only the tables are read
    num_words = sum(len(utterance.words) for utterance in data)
    speakers = {utterance.speaker for utterance in data}
    return f"data directory: {len(data)} utterances, {num_words} words, {len(speakers)} speakers"


def describe_fsa(fsa: Fsa) -> str:
    """States, arcs, pdfs, and the shortest path of an acceptor."""
    num_final = int(np.count_nonzero(np.isfinite(fsa.final_log_prob)))
    pdfs = f"pdfs {fsa.pdf.min()} to {fsa.pdf.max()}" if fsa.num_arcs else "no pdfs"
    return "\n".join(
        [
            f"acceptor: {fsa.num_states} states, {num_final} of them final, {fsa.num_arcs} arcs, {pdfs}",
            f"start state {fsa.start}, shortest path {fsa.min_frames():g} frames",
        ]
    )


def describe_numerators(path: Path) -> str:
    """Number and size of the numerators in one file."""
    from fsachain.graph.numerator_files import load_numerators

    numerators = load_numerators(path)
    arcs = [numerator.fsa.num_arcs for numerator in numerators.values()]
    words = sum(len(numerator.words) for numerator in numerators.values())
    most = max(arcs, default=0)
    return f"numerators: {len(arcs)} utterances, {words} words, {sum(arcs)} arcs, at most {most} in one"


def describe_chunks(path: Path) -> str:
    """Number and size of the chunks in one file."""
    from fsachain.graph.chunks import load_chunks

    utterances = load_chunks(path)
    chunks = [chunk for lists in utterances.values() for one in lists for chunk in one]
    copies = max((len(lists) for lists in utterances.values()), default=0)
    frames = [chunk.end - chunk.start for chunk in chunks]
    return "\n".join(
        [
            f"chunks: {len(chunks)} of {len(utterances)} utterances in {copies} copies",
            f"at most {max(frames, default=0)} output frames in one, {sum(frames)} in all, "
            f"{sum(chunk.fsa.num_arcs for chunk in chunks)} arcs",
        ]
    )


def describe_model(path: Path) -> str:
    """Size and inputs of a trained model."""
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.nn.tdnnf import num_parameters

    model = AcousticModel.load(path)
    network, features = model.network, model.experiment.features
    return "\n".join(
        [
            f"model: {num_parameters(network)} parameters, {network.config.num_pdfs} pdfs",
            f"input: {features.num_features} {features.kind} features at {features.sample_rate} Hz, "
            f"normalised per {model.cmvn.config.scope}",
            f"output: one frame every {1000 * model.timing.frame_seconds:g} ms",
        ]
    )
