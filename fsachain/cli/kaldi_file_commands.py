"""Commands `fsachain kaldi ...` on single files: alignments, phone sequences, examples, anything to be looked at."""

from __future__ import annotations

from pathlib import Path

import click

from fsachain.cli.options import INPUT_FILE, OUTPUT


@click.command("phone-lm")
@click.argument("phones")
@click.argument("out", type=OUTPUT)
@click.option("--ngram-order", type=click.IntRange(min=2), default=4, show_default=True, help="As in Kaldi.")
@click.option(
    "--num-extra-lm-states", type=click.IntRange(min=0), default=1000, show_default=True, help="As in Kaldi."
)
@click.option(
    "--no-prune-ngram-order", type=click.IntRange(min=1), default=3, show_default=True, help="As in Kaldi."
)
def phone_lm(
    phones: str, out: Path, ngram_order: int, num_extra_lm_states: int, no_prune_ngram_order: int
) -> None:
    """Estimate a phone language model as chain-est-phone-lm does, arc for arc.

    In: PHONES, an archive of phone ids by utterance, such as ali-to-phones writes.

    Out: OUT, phone_lm.fst, for `fsachain den-graph`.
    """
    from fsachain.cli.steps.kaldi_corpora import estimate_lm_of_phones

    fsa = estimate_lm_of_phones(
        phones,
        out,
        ngram_order=ngram_order,
        num_extra_lm_states=num_extra_lm_states,
        no_prune_ngram_order=no_prune_ngram_order,
    )
    click.echo(f"phone language model of {fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("phones", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.argument("alignments", nargs=-1, required=True)
@click.option(
    "--frame-shift",
    type=float,
    default=0.01,
    show_default=True,
    help="Seconds for each frame of the alignments: 0.03 for chain models that see one frame in three.",
)
def ctm(model: Path, phones: Path, out: Path, alignments: tuple[str, ...], frame_shift: float) -> None:
    """Write the phones of alignments with their times.

    In: MODEL, the 0.trans_mdl or final.mdl of the alignments; PHONES, its phones.txt; ALIGNMENTS, ali.*.gz.

    Out: OUT, a CTM file, which `fsachain supervise` and `fsachain tie-tree` take.
    """
    from fsachain.cli.steps.kaldi_corpora import alignments_to_ctm

    count = alignments_to_ctm(alignments, model, phones, out, frame_shift=frame_shift)
    click.echo(f"{count} utterances -> {out}")


@click.command()
@click.argument("out", type=OUTPUT)
@click.argument("examples", nargs=-1, required=True)
def egs(out: Path, examples: tuple[str, ...]) -> None:
    """Take over chain examples, end-to-end or made from alignments, merged or not.

    In: EXAMPLES, cegs.*.ark.

    Out: folder OUT with data, a data directory of features, and chunks.npz: what `fsachain train` takes as data and
    numerators, with `features: {kind: archive, num_columns: ...}` in its configuration.
    """
    from fsachain.cli.steps.kaldi_corpora import import_examples

    click.echo(f"{import_examples(examples, out)} -> {out}")


@click.command()
@click.argument(
    "kind",
    type=click.Choice(
        [
            "matrix",
            "vector",
            "alignment",
            "posterior",
            "fst",
            "lattice",
            "example",
            "fst-file",
            "model",
            "topo",
            "tree",
        ]
    ),
)
@click.argument("source")
def show(kind: str, source: str) -> None:
    """Print a file of Kaldi as text.

    In: KIND and SOURCE: an archive or scp file of matrices, vectors, alignments, posteriors, FSTs, lattices or chain
    examples; or one FST, transition model, topo or tree. The lattices are those of lat.*.gz, the model 0.trans_mdl or
    final.mdl.

    Out: text, printed: archives as Kaldi's ark,t:- does, FSTs in AT&T form, of examples a line for each input and output.
    """
    from fsachain.cli.steps.kaldi_values import describe_values

    for line in describe_values(kind, source):
        click.echo(line)


KALDI_FILE_COMMANDS = (phone_lm, ctm, egs, show)
