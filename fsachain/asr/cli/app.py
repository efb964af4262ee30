"""The commands of `fsachain`, by name. `fsachain --help` imports none of them: most bring PyTorch, which takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from fsachain.asr.cli.options import SuggestingGroup

# The commands by group, in the order of their use: name, module (a function of that name, with "_" for "-"), and the first
# line of the help.
_TABLE = """
The whole way
  run           run           Go the whole way from data sets and a lexicon to a word error rate.
  config        chosen        Explain every option of a configuration, or choose them for data.
  warmup        warmup        Compile the kernels beforehand, for container images.
Data and graphs
  spell         lang          Make a lexicon of characters, where there is no dictionary.
  lang          lang          Number the words, phones and pdfs of a lexicon.
  validate      training      List what is wrong with a data directory, before a training meets it.
  phone-lm      lang          Estimate the phone language model of the denominator.
  word-lm       lang          Estimate a word n-gram and spell it out in phones, for a denominator.
  estimate-arpa lang          Estimate an n-gram with modified Kneser-Ney smoothing.
  arpa-lm       lang          Turn an ARPA file into a language model for a denominator.
  den-graph     graphs        Build the denominator graph.
  num-graphs    graphs        Build the numerator graph of every utterance.
  num-tables    graphs        Build and compile the numerators of a large corpus; continues where an earlier run stood.
  num-patterns  graphs        Build numerators of alternatives, gaps, unknown words and keywords.
  num-fsts      graphs        Build numerators from graphs in OpenFst files or AT&T text.
Training
  train         training      Train a network with LF-MMI; a run that was broken off continues where it stood.
  supervise     supervision   Make numerators whose times come from an alignment, in chunks: for a second training.
  tie-tree      supervision   Tie the left biphones of a language by the aligned frames of an end-to-end model.
Using a model
  decode        decoding      Recognise the words of a data directory, and score them against its transcripts.
  rescore       decoding      Let a larger language model choose among the best word sequences.
  align         alignment     Find when each word and phone of the transcripts is said.
  transcribe    use           Recognise recordings, and print their words with times and confidences.
  align-long    alignment     Find when each word of a long recording is said, in memory that does not grow with it.
  align-corpus  corpus        Find when each word and phone of a whole corpus is said, and where text and recordings differ.
  compare-times times         Compare the times of two alignments of the same recordings.
  suspicious    decoding      List the words of transcripts that were hardly said, worst first.
  mend          decoding      Write transcripts anew that may be wrong: what was most likely said, given what was written.
  keyword       decoding      Look for a keyword, and count misses at a given rate of false alarms.
  export        use           Write a model as an ONNX file, checked against PyTorch.
Looking
  report        report        Show an experiment as one HTML file that needs no network.
  plot          report        Draw a lattice, graph, alignment, training or word error rate; docs/plot.md shows each.
  tensorboard   report        Write a training's log as TensorBoard scalars.
  info          inspect       Describe a file: OpenFst graph, numerators, compiled tables, model, word network, language folder or data directory.
  score         inspect       Compare two transcripts.
Kaldi
  kaldi         kaldi         Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide.
FSA tools
  objf          sums          Compute the LF-MMI objective of network outputs and graphs as they are, and its derivatives.
  sum           sums          Add up the paths of graphs through matrices of scores: log Z, the best path, occupancies.
  equivalent    inspect       Compare two graphs by the scores of random sequences that each accepts.
  random-paths  inspect       Draw random accepted paths.
  dot           inspect       Print a small graph for Graphviz: fsachain dot den.fst | dot -Tsvg > den.svg.
  determinize   inspect       Give each accepted sequence one path, with its score in the semiring.
  minimize      inspect       Make a deterministic graph as small as it can be, weights pushed to the start in the semiring.
"""  # noqa: E501
GROUPS: dict[str, dict[str, tuple[str, str]]] = {}
for _line in _TABLE.strip().splitlines():
    if not _line.startswith(" "):
        _group = GROUPS.setdefault(_line, {})
    else:
        _name, _module, _help = _line.split(maxsplit=2)
        _group[_name] = (_module, _help)
COMMANDS = {name: found for names in GROUPS.values() for name, found in names.items()}
# What the same command does after Ctrl-C, where it does not begin anew.
GOES_ON = {
    "run": "it goes on with the stage that was broken off",
    "train": "it goes on from the newest checkpoint",
    "num-tables": "it goes on where it stood",
    "align-corpus": "it goes on where it stood",
}


class LazyGroup(SuggestingGroup):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        ctx.invoked_subcommand = cmd_name  # click says so after the import, which Ctrl-C may break off
        from fsachain.files import without_collector

        with without_collector():
            module = import_module(f"fsachain.asr.cli.{COMMANDS[cmd_name][0]}")
        found = getattr(module, cmd_name.replace("-", "_"))
        command: click.Command = getattr(found, "as_command", found)  # groups are commands themselves
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in names.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            how = GOES_ON.get(
                ctx.invoked_subcommand or "", "it begins anew, with the features of --cache if it has any"
            )
            click.echo(f"\ninterrupted; give the same command again: {how}", err=True)
            raise


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True},
)
@click.version_option(package_name="fsachain")
@click.option(
    "--allow-import",
    "imports",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Import this class for models whose network it is, and call it with their options; may be repeated.",
)
@click.pass_context
def app(context: click.Context, imports: tuple[str, ...]) -> None:
    """Lattice-free MMI: from a lexicon, transcripts and recordings to a word error rate.

    `run` does all of it; step by step: lang, phone-lm, den-graph, num-graphs, train, decode, align. Exit status: 0 done,
    1 an error in the input, 2 wrong usage, 3 done without some utterances, which are listed, 75 stopped by SIGTERM with
    the state saved.
    """
    if imports:
        from fsachain.asr.cli.model import permitted_imports

        context.with_resource(permitted_imports(imports))
