"""The commands that change nothing: `score` compares two transcripts, `info` describes a file."""

from __future__ import annotations

from pathlib import Path

import click

from fsachain.cli.options import INPUT_FILE, INPUT_PATH, OUTPUT


@click.command()
@click.argument("reference", type=INPUT_FILE)
@click.argument("hypothesis", type=INPUT_FILE)
@click.option("--utt2spk", type=INPUT_FILE, help="Kaldi's table of speakers, for a table of theirs.")
@click.option("--out", type=OUTPUT, help="Folder for wer.txt and wer.json.")
def score(reference: Path, hypothesis: Path, utt2spk: Path | None, out: Path | None) -> None:
    """Compare two transcripts.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...).

    Out: the word error rate, the table of speakers and every wrong utterance, printed;
    with --out also as files.
    """
    from fsachain.decode.wer import read_text
    from fsachain.decode.wer import score as score_words
    from fsachain.errors import DataError

    speakers = None
    if utt2spk is not None:
        speakers = {name: words[0] for name, words in read_text(utt2spk).items() if words}
    references = read_text(reference)
    if not references:
        raise DataError(f"{reference}: no utterances; expected lines of an utterance and its words")
    report = score_words(references, read_text(hypothesis), speakers=speakers)
    if out is not None:
        report.write(out)
    click.echo(report.to_text(), nl=False)


@click.command()
@click.argument("path", type=INPUT_PATH)
def info(path: Path) -> None:
    """Describe a file: OpenFst graph, numerators, compiled tables, model, language folder or data directory.

    In: PATH.

    Out: a few lines, printed. Of a graph: states, arcs, pdfs, self-loops, cycles, final states, shortest path, sums
    of its states, memory and work per frame.
    """
    from fsachain.cli.steps.inspect import describe_path

    click.echo(describe_path(path))
