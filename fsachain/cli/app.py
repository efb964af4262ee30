"""The commands of `fsachain`, by name. `fsachain --help` imports none of them: most bring PyTorch, which takes seconds."""

from __future__ import annotations

from importlib import import_module

import click

# By module the commands in it (functions of their names, with "_" for "-") and the first lines of their helps.
MODULES = {
    "run": {"run": "Go the whole way from data sets and a lexicon to a word error rate."},
    "lang": {
        "lang": "Number the words, phones and pdfs of a lexicon.",
        "spell": "Make a lexicon of characters, where there is no dictionary.",
        "phone-lm": "Estimate the phone language model of the denominator.",
        "word-lm": "Estimate a word n-gram and spell it out in phones, for a denominator.",
        "estimate-arpa": "Estimate an n-gram with modified Kneser-Ney smoothing.",
        "arpa-lm": "Turn an ARPA file into a language model for a denominator.",
    },
    "graphs": {
        "den-graph": "Build the denominator graph.",
        "num-graphs": "Build the numerator graph of every utterance.",
        "num-tables": "Build and compile the numerators of a large corpus; continues where an earlier run stood.",
        "num-patterns": "Build numerators of alternatives, gaps, unknown words and keywords.",
        "num-fsts": "Build numerators from graphs in OpenFst files or AT&T text.",
    },
    "training": {
        "train": "Train a network with LF-MMI; a run that was broken off continues where it stood.",
        "validate": "List what is wrong with a data directory, before a training meets it.",
    },
    "decoding": {
        "decode": "Recognise the words of a data directory, and score them against its transcripts.",
        "rescore": "Let a larger language model choose among the best word sequences.",
        "align": "Find when each word and phone of the transcripts is said.",
        "suspicious": "List the words of transcripts that were hardly said, worst first.",
        "keyword": "Look for a keyword, and count misses at a given rate of false alarms.",
    },
    "supervision": {
        "supervise": "Make numerators whose times come from an alignment, in chunks: for a second training.",
        "tie-tree": "Tie the left biphones of a language by the aligned frames of an end-to-end model.",
    },
    "use": {
        "transcribe": "Recognise recordings, and print their words with times and confidences.",
        "align-long": "Find when each word of a long recording is said, in memory that does not grow with it.",
        "export": "Write a model as an ONNX file, checked against PyTorch.",
    },
    "corpus": {
        "align-corpus": "Find when each word and phone of a whole corpus is said, and where text and recordings differ.",
    },
    "inspect": {
        "score": "Compare two transcripts.",
        "info": "Describe a file: OpenFst graph, numerators, compiled tables, model, language folder or data directory.",
        "equivalent": "Compare two graphs by the scores of random sequences that each accepts.",
        "random-paths": "Draw random accepted paths.",
        "dot": "Print a small graph for Graphviz: fsachain dot den.fst | dot -Tsvg > den.svg.",
        "determinize": "Give each accepted sequence one path, with its score in the semiring.",
        "minimize": "Make a deterministic graph as small as it can be, weights pushed to the start in the semiring.",
    },
    "sums": {
        "objf": "Compute the LF-MMI objective of network outputs and graphs as they are, and its derivatives.",
        "sum": "Add up the paths of graphs through matrices of scores: log Z, the best path, occupancies.",
    },
    "report": {
        "report": "Show an experiment as one HTML file that needs no network.",
        "tensorboard": "Write a training's log as TensorBoard scalars.",
    },
    "plots": {
        "plot": "Draw a lattice, graph, alignment, training or word error rate; docs/plot.md shows each."
    },
    "configuration": {"config": "Explain every option of a configuration."},
    "kaldi": {"kaldi": "Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide."},
}
COMMANDS = {name: (module, text) for module, names in MODULES.items() for name, text in names.items()}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"fsachain.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [(name, click.Command(name, help=text)) for name, (_, text) in sorted(COMMANDS.items())]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in rows])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
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

    The usual order: lang, phone-lm, den-graph, num-graphs, train, decode, score, align. A second training on
    chunks goes on with supervise, train, decode. Exit status: 0 done, 1 an error in the input, 2 wrong usage,
    3 done without some utterances, which are listed, 75 stopped by SIGTERM with the state saved.
    """
    if imports:
        from fsachain.cli.model import permitted_imports

        context.with_resource(permitted_imports(imports))
