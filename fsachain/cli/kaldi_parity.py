"""The command `fsachain kaldi objf`: our objective beside Kaldi's own log."""

from __future__ import annotations

from pathlib import Path

import click

from fsachain.cli.options import INPUT_FILE

DIFFERENT = 1  # exit status


@click.command()
@click.argument("examples")
@click.argument("matrices")
@click.argument("den", type=INPUT_FILE)
@click.option("--leaky-hmm-coefficient", type=float, default=0.1, show_default=True, help="As in training.")
@click.option("--l2-regularize", type=float, default=0.0, show_default=True, help="As in training.")
@click.option("--log", type=INPUT_FILE, help="Log of nnet3-chain-compute-prob for these examples.")
@click.option("--output-name", default="output", show_default=True, help="The network's output in the log.")
@click.option(
    "--tolerance", type=float, default=1e-4, show_default=True, help="Largest difference per frame."
)
@click.pass_context
def objf(
    context: click.Context,
    examples: str,
    matrices: str,
    den: Path,
    leaky_hmm_coefficient: float,
    l2_regularize: float,
    log: Path | None,
    output_name: str,
    tolerance: float,
) -> None:
    """Compute the objective of chain examples, and compare it with a Kaldi log.

    In: EXAMPLES, cegs.*.ark or valid_diagnostic.cegs of an end-to-end recipe; MATRICES, the network's outputs for them;
    DEN, den.fst; --log compute_prob_valid.final.log, which Kaldi wrote for the same examples and network.

    Out: a line for each example and one for all, printed; with --log a table of ours and Kaldi's, counted as Kaldi does
    (docs/kaldi.md says how that differs). Exit status 1 if they differ by more than the tolerance.
    """
    from fsachain.cli.steps.kaldi_objf import TITLES, ExampleObjf, Parity, Totals, example_objfs
    from fsachain.kaldi.training_log import read_objective

    theirs = None if log is None else read_objective(log, output_name)
    found: list[ExampleObjf] = []
    for example in example_objfs(examples, matrices, den, leaky_hmm_coefficient):
        click.echo(str(example) if found else f"{TITLES}\n{example}")
        found.append(example)
    totals = Totals.of(found, l2_regularize)
    click.echo(str(totals))
    if theirs is not None:
        parity = Parity(totals, theirs, tolerance)
        click.echo(str(parity))
        context.exit(0 if parity else DIFFERENT)
