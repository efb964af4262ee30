"""The commands of `fsachain`, by name. `fsachain --help` imports none of them: most bring PyTorch, which takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click


class Entry(NamedTuple):
    """Where a command is, and the first line of its help."""

    module: str
    name: str
    help: str


COMMANDS = {
    "lang": Entry("lang", "lang_command", "Number the words, phones and pdfs of a lexicon."),
    "spell": Entry("language_models", "spell", "Make a lexicon of characters, where there is no dictionary."),
    "phone-lm": Entry("language_models", "phone_lm", "Estimate the phone language model of the denominator."),
    "word-lm": Entry(
        "language_models", "word_lm", "Estimate a word n-gram and spell it out in phones, for a denominator."
    ),
    "estimate-arpa": Entry(
        "language_models", "estimate_arpa", "Estimate an n-gram with modified Kneser-Ney smoothing."
    ),
    "arpa-lm": Entry(
        "language_models", "arpa_lm", "Turn an ARPA file into a language model for a denominator."
    ),
    "den-graph": Entry("graphs", "den_graph", "Build the denominator graph."),
    "num-graphs": Entry("graphs", "num_graphs", "Build the numerator graph of every utterance."),
    "num-tables": Entry(
        "graphs",
        "num_tables",
        "Build and compile the numerators of a large corpus; a run that was broken off continues where it stood.",
    ),
    "num-patterns": Entry(
        "graphs", "num_patterns", "Build numerators of alternatives, gaps, unknown words and keywords."
    ),
    "num-fsts": Entry("graphs", "num_fsts", "Build numerators from graphs in OpenFst files or AT&T text."),
    "train": Entry(
        "training",
        "train",
        "Train a network with LF-MMI; a run that was broken off continues where it stood.",
    ),
    "validate": Entry(
        "validate", "validate", "List what is wrong with a data directory, before a training meets it."
    ),
    "decode": Entry(
        "decoding",
        "decode",
        "Recognise the words of a data directory, and score them against its transcripts.",
    ),
    "rescore": Entry(
        "decoding", "rescore", "Let a larger language model choose among the best word sequences."
    ),
    "align": Entry("decoding", "align", "Find when each word and phone of the transcripts is said."),
    "keyword": Entry(
        "decoding", "keyword", "Look for a keyword, and count misses at a given rate of false alarms."
    ),
    "supervise": Entry(
        "supervision",
        "supervise",
        "Make numerators whose times come from an alignment, in chunks: for a second training.",
    ),
    "tie-tree": Entry(
        "supervision",
        "tie_tree",
        "Tie the left biphones of a language by the aligned frames of an end-to-end model.",
    ),
    "transcribe": Entry(
        "use", "transcribe", "Recognise recordings, and print their words with times and confidences."
    ),
    "align-long": Entry(
        "use",
        "align_long",
        "Find when each word of a long recording is said, in memory that does not grow with it.",
    ),
    "export": Entry("use", "export", "Write a model as an ONNX file, checked against PyTorch."),
    "score": Entry("inspect", "score", "Compare two transcripts."),
    "info": Entry(
        "inspect",
        "info",
        "Describe a file: OpenFst graph, numerators, compiled tables, model, language folder or data directory.",
    ),
    "equivalent": Entry(
        "inspect", "equivalent", "Compare two graphs by the scores of random sequences that each accepts."
    ),
    "random-paths": Entry("inspect", "random_paths", "Draw random accepted paths."),
    "dot": Entry(
        "inspect", "dot", "Print a small graph for Graphviz: fsachain dot den.fst | dot -Tsvg > den.svg."
    ),
    "determinize": Entry(
        "inspect", "determinize", "Give each accepted sequence one path, with its score in the semiring."
    ),
    "minimize": Entry(
        "inspect",
        "minimize",
        "Make a deterministic graph as small as it can be, weights pushed to the start in the semiring.",
    ),
    "report": Entry("report", "report", "Show an experiment as one HTML file that needs no network."),
    "tensorboard": Entry("report", "tensorboard", "Write a training's log as TensorBoard scalars."),
    "plot": Entry(
        "plots",
        "plot",
        "Draw a lattice, graph, alignment, training or word error rate; docs/plot.md shows each.",
    ),
    "kaldi": Entry(
        "kaldi", "kaldi", "Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide."
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        entry = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"fsachain.cli.{entry.module}"), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=COMMANDS[name].help).get_short_help_str(limit))
                    for name in self.list_commands(ctx)
                ]
            )


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
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
