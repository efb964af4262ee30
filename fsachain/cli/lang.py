"""The language folder: lexicon.json and tree.npz, which fix words, phones and pdfs of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.config import LangConfig
from fsachain.data.cuts import holds_cuts
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import read_text
from fsachain.errors import DataError
from fsachain.graph.context import BiphoneCounts, ContextTree
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.topology import Topology

LEXICON = "lexicon.json"
TREE = "tree.npz"


@dataclass(frozen=True)
class Lang:
    """A lexicon and the context tree over its phones."""

    lexicon: Lexicon
    tree: ContextTree

    def __str__(self) -> str:
        words, phones = self.lexicon.words, self.lexicon.phones
        return f"{len(words)} words, {len(phones)} phones, {self.tree.num_pdfs} pdfs"

    @property
    def spoken_words(self) -> tuple[str, ...]:
        """The words of the lexicon that have a pronunciation beyond silence, in its order."""
        silence = self.lexicon.silence_phone
        return tuple(
            word
            for word in self.lexicon.words
            if any(set(entry.phones) - {silence} for entry in self.lexicon.pronunciations_of(word))
        )


def make_lang(
    lexicon_path: Path,
    out: Path,
    config: LangConfig,
    *,
    transcripts: Iterable[Sequence[str]] = (),
    seed: int = 1,
) -> Lang:
    """Read a lexicon, number its pdfs, and write both to the folder `out`.

    Args:
        lexicon_path: Kaldi's lexicon.txt or lexiconp.txt.
        out: folder for lexicon.json, tree.npz, words.txt and phones.txt (the last two to be read by people).
        config: silence, topology and context.
        transcripts: counted for the context "tied-biphone"; words that the lexicon refuses are left out.
        seed: of the pronunciations and silences drawn for the counts.

    Raises:
        DataError: no transcript with known words, where one is needed.
    """
    lexicon = Lexicon.read(
        lexicon_path, silence=config.silence, silence_prob=config.silence_prob, oov=config.oov
    )
    lang = Lang(lexicon, _tree(lexicon, config, transcripts, seed))
    save_lang(lang, out)
    return lang


def save_lang(lang: Lang, out: Path) -> None:
    """Write the language folder `out`, which `load_lang` reads."""
    out.mkdir(parents=True, exist_ok=True)
    lang.lexicon.save(out / LEXICON)
    lang.tree.save(out / TREE)
    for name, symbols in (("words.txt", lang.lexicon.words), ("phones.txt", lang.lexicon.phones)):
        lines = [f"{symbol} {number}\n" for number, symbol in enumerate(("<eps>", *symbols))]
        (out / name).write_text("".join(lines), encoding="utf-8")


def load_lang(folder: Path) -> Lang:
    """The lexicon and tree that `make_lang` wrote.

    Raises:
        DataError: the folder lacks one of them.
    """
    for name in (LEXICON, TREE):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; make the folder with `fsachain lang`")
    return Lang(Lexicon.load(folder / LEXICON), ContextTree.load(folder / TREE))


def _tree(
    lexicon: Lexicon, config: LangConfig, transcripts: Iterable[Sequence[str]], seed: int
) -> ContextTree:
    topologies = {
        "chain": Topology.chain,
        "chain-one-pdf": Topology.chain_one_pdf,
        "left-to-right-3": lambda: Topology.left_to_right(3),
        "ctc": Topology.ctc,
        "ctc-compact": lambda: Topology.ctc("compact"),
        "ctc-selfless": lambda: Topology.ctc("selfless"),
        "ctc-minimal": lambda: Topology.ctc("minimal"),
    }
    topology = topologies[config.topology]()
    if config.context == "monophone":
        return ContextTree.monophone(lexicon.phones, topology)
    independent = () if lexicon.silence is None else (lexicon.silence,)
    if config.context == "biphone":
        return ContextTree.biphone(lexicon.phones, topology, context_independent=independent)
    known = lexicon.words
    usable = [
        words for words in transcripts if words and (lexicon.oov or all(map(known.__contains__, words)))
    ]
    if not usable:
        raise DataError(
            "lang.context: tied-biphone counts phones; expected transcripts of known words (--text)"
        )
    return ContextTree.tied_biphone(
        lexicon.phones,
        topology,
        BiphoneCounts.of(lm_phones(usable, lexicon, seed=seed)),
        min_biphone_count=config.min_biphone_count,
        min_monophone_count=config.min_monophone_count,
        context_independent=independent,
    )


# Words by utterance, from a file of transcripts or from a whole data set.


def read_transcripts(path: Path) -> Mapping[str, tuple[str, ...]]:
    """What is said, by utterance.

    Args:
        path: a file in Kaldi's format (utterance word ...), or a data set. Of a data set, utterances with a fault are left
            out. No recording is touched, so none is made by a command either.

    Raises:
        DataError: it cannot be read.
    """
    if path.is_dir() or holds_cuts(path):
        data, _ = DataDir.check(path, allow_commands=True)
        return {utterance.id: utterance.words for utterance in data}
    return read_text(path)
