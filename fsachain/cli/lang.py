"""The language folder: lexicon.json and tree.npz, which fix words, phones and pdfs; the command `fsachain lang`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fsachain.cli.config import Experiment, LangConfig, config_option
from fsachain.cli.options import INPUT_DATA, INPUT_FILE, INPUT_FOLDER, OUTPUT, seed_option
from fsachain.data.cuts import holds_cuts
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import read_text
from fsachain.errors import DataError, GraphError
from fsachain.graph.context import BiphoneCounts, ContextTree
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.topology import Topology

LEXICON = "lexicon.json"
TREE = "tree.npz"


@dataclass(frozen=True)
class Lang:
    lexicon: Lexicon
    tree: ContextTree

    def __str__(self) -> str:
        words, phones = self.lexicon.words, self.lexicon.phones
        return f"{len(words)} words, {len(phones)} phones, {self.tree.num_pdfs} pdfs"

    @property
    def spoken_words(self) -> tuple[str, ...]:
        """The words that have a pronunciation beyond silence, in the lexicon's order."""
        silence = self.lexicon.silence_phone
        return tuple(
            word
            for word in self.lexicon.words
            if any(set(entry.phones) - {silence} for entry in self.lexicon.pronunciations_of(word))
        )

    def refusal(self, words: Iterable[str], name: str) -> str | None:
        try:
            for word in words:
                self.lexicon.pronunciations_of(word, name=name)
        except GraphError as error:
            return str(error)
        return None

    @property
    def context_independent(self) -> tuple[str, ...]:
        """The phones whose pdfs do not depend on the phone before."""
        return () if self.lexicon.silence is None else (self.lexicon.silence,)

    def save(self, out: Path) -> None:
        """Writes what `load_lang` reads, and words.txt and phones.txt for people."""
        out.mkdir(parents=True, exist_ok=True)
        self.lexicon.save(out / LEXICON)
        self.tree.save(out / TREE)
        for name, symbols in (("words.txt", self.lexicon.words), ("phones.txt", self.lexicon.phones)):
            lines = [f"{symbol} {number}\n" for number, symbol in enumerate(("<eps>", *symbols))]
            (out / name).write_text("".join(lines), encoding="utf-8")


def load_lang(folder: Path) -> Lang:
    for name in (LEXICON, TREE):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; make the folder with `fsachain lang`")
    return Lang(Lexicon.load(folder / LEXICON), ContextTree.load(folder / TREE))


lang_option = click.option(
    "--lang",
    type=INPUT_FOLDER,
    required=True,
    callback=lambda _context, _option, folder: load_lang(folder),
    help="Folder made by `fsachain lang`.",
)


@click.command("lang")
@click.argument("lexicon", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option(
    "--text",
    type=INPUT_DATA,
    help="Transcripts or data set whose phones are counted for a tied-biphone context.",
)
@config_option
@seed_option
def lang_command(lexicon: Path, out: Path, text: Path | None, experiment: Experiment, seed: int) -> None:
    """Number the words, phones and pdfs of a lexicon.

    In: LEXICON, Kaldi's lexicon.txt or lexiconp.txt; section `lang` of the configuration.

    Out: folder OUT with lexicon.json, tree.npz, words.txt and phones.txt.
    """
    said = () if text is None else read_transcripts(text).values()
    made = make_lang(lexicon, out, experiment.lang, transcripts=said, seed=seed)
    click.echo(f"{made} -> {out}")


def make_lang(
    lexicon_path: Path,
    out: Path,
    config: LangConfig,
    *,
    transcripts: Iterable[Sequence[str]] = (),
    seed: int = 1,
) -> Lang:
    """Read a lexicon (Kaldi's lexicon.txt or lexiconp.txt), number its pdfs, and write the language folder `out`.

    The context "tied-biphone" counts phones in `transcripts`, those left out that have a word which the lexicon refuses;
    `seed` is that of the pronunciations and silences drawn for the counts.
    """
    lexicon = Lexicon.read(
        lexicon_path, silence=config.silence, silence_prob=config.silence_prob, oov=config.oov
    )
    topology = {
        "chain": Topology.chain,
        "chain-one-pdf": Topology.chain_one_pdf,
        "left-to-right-3": lambda: Topology.left_to_right(3),
        "ctc": Topology.ctc,
        "ctc-compact": lambda: Topology.ctc("compact"),
        "ctc-selfless": lambda: Topology.ctc("selfless"),
        "ctc-minimal": lambda: Topology.ctc("minimal"),
    }[config.topology]()
    lang = Lang(lexicon, ContextTree.monophone(lexicon.phones, topology))
    if config.context == "biphone":
        tree = ContextTree.biphone(lexicon.phones, topology, context_independent=lang.context_independent)
        lang = Lang(lexicon, tree)
    elif config.context == "tied-biphone":
        known = set(lexicon.words)
        usable = [words for words in transcripts if words and (lexicon.oov or known.issuperset(words))]
        if not usable:
            raise DataError(
                "lang.context: tied-biphone counts phones; expected transcripts of known words (--text)"
            )
        tree = ContextTree.tied_biphone(
            lexicon.phones,
            topology,
            BiphoneCounts.of(lm_phones(usable, lexicon, seed=seed)),
            min_biphone_count=config.min_biphone_count,
            min_monophone_count=config.min_monophone_count,
            context_independent=lang.context_independent,
        )
        lang = Lang(lexicon, tree)
    lang.save(out)
    return lang


def read_transcripts(path: Path) -> Mapping[str, tuple[str, ...]]:
    """What is said, by utterance, from a file in Kaldi's format (utterance word ...) or a data set.

    Utterances of the data set with a fault are left out. No recording is touched, so no command of wav.scp runs.
    """
    if path.is_dir() or holds_cuts(path):
        data, _ = DataDir.check(path, allow_commands=True)
        return {utterance.id: utterance.words for utterance in data}
    return read_text(path)
