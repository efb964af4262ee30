"""The language folder (lexicon.json and tree.npz, which fix words, phones and pdfs), lexica and language models of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import click

from fsachain.asr.cli.advice import advice
from fsachain.asr.cli.config import CONFIG, TOPOLOGIES, Experiment, PhoneLmConfig, config_option
from fsachain.asr.cli.options import DATA, FILE, OUT, Read, command, note, option, seed_option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.data.utterance import Fault
from fsachain.asr.pipeline.defaults import WORTH_AN_ORDER, best_order
from fsachain.asr.pipeline.held_out import phone_lm_orders
from fsachain.errors import DataError, GraphError, brief, counted
from fsachain.files import write_text
from fsachain.fsa import Fsa
from fsachain.graph import grammar
from fsachain.graph.context import BiphoneCounts, ContextTree
from fsachain.graph.denominator import free_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones, phone_difference
from fsachain.graph.numerator import made_with
from fsachain.graph.patterns import phone_model_of_words
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.openfst import read_input_symbols, write_named
from fsachain.progress import counter

LEXICON = "lexicon.json"
TREE = "tree.npz"


@dataclass(frozen=True)
class Lang:
    """Words, phones and pdfs; `experiment` is the configuration they were made with, where that is known.

    `folder` is where they were read.
    """

    lexicon: Lexicon
    tree: ContextTree
    experiment: Experiment | None = None
    folder: Path | None = None

    __repr__ = brief

    @property
    def name(self) -> str:
        return "the language folder" if self.folder is None else str(self.folder)

    def __str__(self) -> str:
        words, phones = self.lexicon.words, self.lexicon.phones
        return f"{counted(len(words), 'word')}, {counted(len(phones), 'phone')}, {counted(self.tree.num_pdfs, 'pdf')}"

    @property
    def spoken_words(self) -> tuple[str, ...]:
        """The words that have a pronunciation beyond silence, in the lexicon's order."""
        silence = self.lexicon.silence_phone
        return tuple(
            word
            for word in self.lexicon.words
            if any(set(entry.phones) - {silence} for entry in self.lexicon.pronunciations_of(word))
        )

    @property
    def ways(self) -> dict[str, set[tuple[int, ...]]]:
        """The pronunciations of each word."""
        pairs = zip(self.lexicon.words, self.lexicon.pronunciations, strict=True)
        return {word: {way.phones for way in ways} for word, ways in pairs}

    def difference(self, other: Lang) -> str | None:
        """What of `other` gives pdfs or words another meaning; words and pronunciations may be more, or fewer."""
        where = ("the model", other.name)
        told = self.tree.difference(other.tree, where)
        if told is not None or self.lexicon.silence != other.lexicon.silence:
            return (
                told
                or f"silence is {self.lexicon.silence} in {where[0]}, {other.lexicon.silence} in {where[1]}"
            )
        theirs = other.ways
        for word, ways in self.ways.items():
            if ways.isdisjoint(theirs.get(word, ways)):
                spoken = (ways, theirs[word])
                one, two = (" ".join(self.lexicon.phones[p - 1] for p in min(found)) for found in spoken)
                return f"{word!r} is said {one!r} in {where[0]}, {two!r} in {where[1]}, which has no way in common"
        return None

    def other_words(self, other: Lang) -> str | None:
        """How many words of `other` are new, missing or said in other ways, and the first of each; phones are the same."""
        mine, theirs = self.ways, other.ways
        kinds = {
            "more": [word for word in theirs if word not in mine],
            "fewer": [word for word in mine if word not in theirs],
            "with other pronunciations": [w for w in theirs if w in mine and mine[w] != theirs[w]],
        }
        told = [
            f"{counted(len(found), 'word')} {kind} ({found[0]!r})" for kind, found in kinds.items() if found
        ]
        return ", ".join(told) or None

    @property
    def context_independent(self) -> tuple[str, ...]:
        """The phones whose pdfs do not depend on the phone before."""
        return () if self.lexicon.silence is None else (self.lexicon.silence,)

    def save(self, out: Path) -> None:
        """Writes what `load_lang` reads, and words.txt and phones.txt for people."""
        self.lexicon.save(out / LEXICON)
        self.tree.save(out / TREE)
        (out / CONFIG).unlink(missing_ok=True)
        if self.experiment is not None:
            self.experiment.write(out / CONFIG)
        for name, symbols in (("words.txt", self.lexicon.words), ("phones.txt", self.lexicon.phones)):
            lines = [f"{symbol} {number}\n" for number, symbol in enumerate(("<eps>", *symbols))]
            write_text(out / name, "".join(lines))


def load_lang(folder: Path) -> Lang:
    for name in (LEXICON, TREE):
        if not (folder / name).is_file():
            inner = folder / "lang"
            expected = f"; expected {inner}" if (inner / name).is_file() else advice(folder)
            raise DataError(f"{folder}: no {name}{expected or '; make the folder with `fsachain lang`'}")
    config = folder / CONFIG
    experiment = Experiment.read(config) if config.is_file() else None
    return Lang(Lexicon.load(folder / LEXICON), ContextTree.load(folder / TREE), experiment, folder)


def check_origin(lang: Lang | None, origin: Any, path: Path) -> None:
    """The file `path` must have been made with the phones, words and tree of `lang`, as far as its `origin` tells."""
    if lang is None:
        return
    if not isinstance(origin, Mapping) or not isinstance(origin.get("phones"), list):
        note(f"warning: {path} does not say what it was made with: not checked against {lang.name}")
        return
    mine = made_with(lang.lexicon, lang.tree)
    told = phone_difference(origin["phones"], mine["phones"], ("the file", lang.name))
    for part, meaning in (("tree", "the tree"), ("lexicon", "words, pronunciations or silence")):
        if told is None and origin.get(part) != mine[part]:
            told = f"{meaning} of {lang.name} are others"
    if told is not None:
        raise DataError(f"{path}: made with another language folder: {told}; make it anew")


LANG = Read(load_lang, folder=True)
# Eager: read before options that need it.
lang_option = option(LANG, "Folder made by `fsachain lang`.", "--lang", required=True, is_eager=True)


def usable_transcripts(
    said: Mapping[str, Sequence[str]], lexicon: Lexicon | None = None
) -> tuple[dict[str, Sequence[str]], list[Fault]]:
    """Those with words, and where `lexicon` is given without one that it refuses; and the faults of the others.

    Words are without marks that the lexicon lacks (`Lexicon.without_marks`).
    """
    usable, faults = dict[str, Sequence[str]](), []
    for name, written in said.items():
        words = written if lexicon is None else lexicon.without_marks(written)
        try:
            for word in words:
                if lexicon is not None:
                    lexicon.word_id(word, name=name)
        except GraphError as error:
            faults.append(Fault(name, str(error), "unknown word"))
            continue
        if words:
            usable[name] = words
        else:
            faults.append(Fault(name, f"utterance {name!r}: the transcript is empty", "empty text"))
    return usable, faults


@command(lexicon=FILE, out=OUT)
def lang(
    lexicon: Path,
    out: Path,
    text: Mapping[str, Sequence[str]] | None = option(
        DATA, "Transcripts or data set whose phones are counted for a tied-biphone context."
    ),
    experiment: Experiment = config_option,
    seed: int = seed_option,
    resources: Resources = with_resources("bad_data"),
) -> Lang:
    """Number the words, phones and pdfs of a lexicon.

    In: LEXICON, Kaldi's lexicon.txt or lexiconp.txt; section `lang` of the configuration.
    Out: folder OUT with lexicon.json, tree.npz, words.txt, phones.txt, and config.yaml, the whole configuration, which
    later commands take from there.
    Example: fsachain lang lexicon.txt lang --config config.yaml
    """
    config = experiment.lang
    known = Lexicon.read(lexicon, silence=config.silence, silence_prob=config.silence_prob, oov=config.oov)
    phones, topology = known.phones, TOPOLOGIES[config.topology]()
    for phone in phones:
        if config.silence and phone != config.silence and phone.lower() == config.silence.lower():
            click.echo(
                f"{lexicon}: {phone!r} is a phone beside the silence, {config.silence!r}; if it is the silence, say "
                f"lang.silence={phone}"
            )
    made = Lang(known, ContextTree.monophone(phones, topology), experiment)
    alone = made.context_independent
    if config.context == "biphone":
        made = replace(made, tree=ContextTree.biphone(phones, topology, context_independent=alone))
    elif config.context == "tied-biphone":
        if not text:
            raise DataError(
                "lang.context: tied-biphone counts phones; expected transcripts of known words (--text)"
            )
        usable = _usable(text, known, out, resources)
        tree = ContextTree.tied_biphone(
            phones,
            topology,
            BiphoneCounts.of(lm_phones(usable, known, seed=seed)),
            min_biphone_count=config.min_biphone_count,
            min_monophone_count=config.min_monophone_count,
            context_independent=alone,
        )
        made = replace(made, tree=tree)
    made.save(out)
    return made


@command(text=DATA, out=OUT)
def spell(
    text: Mapping[str, Sequence[str]],
    out: Path,
    resources: Resources = with_resources("bad_data", beside=True),
) -> str:
    """Make a lexicon of characters, where there is no dictionary.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set.
    Out: OUT, a lexicon for `fsachain lang`: each word of TEXT is spelled by its characters. Punctuation and symbols around a
    word, and invisible characters such as soft hyphens, are not part of it.
    Example: fsachain spell train/text spelled.txt
    """
    lexicon = Lexicon.characters(_usable(text, None, out, resources), silence=None)
    forms = Counter(normalize("NFC", word) for word in lexicon.words)
    word, most = forms.most_common(1)[0]
    if most > 1:
        click.echo(
            f"words of the same letters stand there in two Unicode forms (NFC, NFD), such as {word!r}; expected one form"
        )
    prob = ["1.0"] if "lexiconp" in out.name else []
    write_text(out, "".join(" ".join([word, *prob, *word]) + "\n" for word in lexicon.words))
    return f"{counted(len(lexicon.words), 'word')}, {counted(len(lexicon.phones), 'character')}"


def _usable(
    text: Mapping[str, Sequence[str]], lexicon: Lexicon | None, out: Path, resources: Resources
) -> list[Sequence[str]]:
    """The transcripts with words, all of which the lexicon has; the others are left out."""
    usable, faults = usable_transcripts(text, lexicon)
    resources.leave_out(faults, len(usable), f"{out}: transcripts")
    return list(usable.values())


@command(text=DATA, out=OUT)
def phone_lm(
    text: Mapping[str, Sequence[str]],
    out: Path,
    lang: Lang = lang_option,
    experiment: Experiment = config_option,
    seed: int = seed_option,
    resources: Resources = with_resources("bad_data", beside=True),
) -> str:
    """Estimate the phone language model of the denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set; section `phone_lm` of the configuration.
    Utterances with unknown words are named and left out.
    Out: OUT, an OpenFst acceptor over phone ids. With phone_lm.ngram_order 0 it is a loop of weight one over all phones, by
    which `fsachain den-graph` makes a denominator that accepts every sequence of pdfs: that of CTC.
    Example: fsachain phone-lm train/text graphs/phone_lm.fst --lang lang
    """
    usable, config = _usable(text, lang.lexicon, out, resources), experiment.phone_lm
    if not config.ngram_order:
        return write_phone_lm(out, free_denominator(len(lang.lexicon.phones)), lang.lexicon.phones)
    if told := _likelier_order(usable, lang, config.ngram_order, seed):
        click.echo(told)
    with counter("phone language model"):
        fsa = estimate_phone_lm(
            _drawn_phones(lang, usable, config, seed),
            ngram_order=config.ngram_order,
            num_extra_lm_states=config.num_extra_lm_states,
            no_prune_ngram_order=config.no_prune_ngram_order,
        )
    return write_phone_lm(out, fsa, lang.lexicon.phones)


def _likelier_order(transcripts: Sequence[Sequence[str]], lang: Lang, order: int, seed: int) -> str | None:
    """A line if another order foretells held-out transcripts much better."""
    orders = {one.order: one for one in phone_lm_orders(transcripts, lang.lexicon, seed=seed)}
    if order not in orders:
        return None
    best = best_order([*orders.values()])
    own = orders[order]
    if best.held_out <= own.held_out + WORTH_AN_ORDER:
        return None
    return (
        f"phone_lm.ngram_order is {order}, with {-own.held_out:.2f} nats per phone of held-out transcripts; {best.order} "
        f"has {-best.held_out:.2f} and most likely gives fewer errors"
    )


def write_phone_lm(out: Path, fsa: Fsa, phones: Sequence[str]) -> str:
    """With the names of the phones, which `check_phone_names` compares."""
    write_named(fsa.to_openfst(), out, phones)
    made = f"phone language model of {counted(fsa.num_states, 'state')}, {counted(fsa.num_arcs, 'arc')}"
    missing = [phones[k] for k in sorted(set(range(len(phones))) - set(fsa.pdf.tolist()))]
    if missing:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        made += f"; it lacks {', '.join(missing[:10])}{more}, for which nothing will be trained"
    return made


def check_phone_names(lang: Lang, path: Path) -> None:
    """The phones of an OpenFst file must be those of the language folder, as far as it names them."""
    named = read_input_symbols(path)[1:]
    difference = phone_difference(named, lang.lexicon.phones, (str(path), lang.name))
    if named and difference is not None:
        raise DataError(f"{path}: made with another language folder: {difference}; make it anew")


def _drawn_phones(
    lang: Lang, transcripts: Iterable[Sequence[str]], config: PhoneLmConfig, seed: int
) -> list[list[int]]:
    edge, between = config.edge_silence, config.between_silence
    return lm_phones(transcripts, lang.lexicon, edge_silence=edge, between_silence=between, seed=seed)


@command(text=DATA, out=OUT)
def word_lm(
    text: Mapping[str, Sequence[str]],
    out: Path,
    lang: Lang = lang_option,
    order: int = option(click.IntRange(min=2), "Words in an n-gram; none is pruned.", default=2),
    resources: Resources = with_resources("bad_data", beside=True),
) -> str:
    """Estimate a word n-gram and spell it out in phones, for a denominator.

    In: TEXT, transcripts in Kaldi's format (utterance word ...) or a data set. Only word sequences whose n-grams TEXT has
    are left, so the denominator is smaller and knows more than that of `fsachain phone-lm`.
    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    Example: fsachain word-lm train/text graphs/word_lm.fst --lang lang
    """
    usable = _usable(text, lang.lexicon, out, resources)
    ids = [[lang.lexicon.word_id(word) for word in words] for words in usable]
    with counter("phone language model"):
        model = estimate_phone_lm(ids, ngram_order=order, num_extra_lm_states=0, no_prune_ngram_order=order)
        fsa = _spelled_out(model, lang)
    return write_phone_lm(out, fsa, lang.lexicon.phones)


def _spelled_out(words: Fsa, lang: Lang) -> Fsa:
    """With the pronunciations of each word as a distribution; Kaldi's lexiconp.txt scales the best to one."""
    scaled = []
    for ways in lang.lexicon.pronunciations:
        total = sum(way.prob for way in ways)
        scaled.append(tuple(way._replace(prob=way.prob / total) for way in ways))
    return phone_model_of_words(words, replace(lang.lexicon, pronunciations=tuple(scaled)))


units_option = option(
    click.Choice(["words", "phones"]),
    "What the n-gram is over. Units of a lexicon without phones (BPE pieces, characters) are its phones.",
    "--units",
    required=True,
)


@command(text=DATA, out=OUT)
def estimate_arpa(
    text: Mapping[str, Sequence[str]],
    out: Path,
    lang: Lang = lang_option,
    units: str = units_option,
    order: int = option(click.IntRange(min=1), "Longest n-gram.", default=3),
    experiment: Experiment = config_option,
    seed: int = seed_option,
    resources: Resources = with_resources("bad_data", beside=True),
) -> str:
    """Estimate an n-gram with modified Kneser-Ney smoothing.

    In: TEXT, transcripts in Kaldi's format; section `phone_lm` of the configuration says where silence stands among phones.
    Out: OUT, an ARPA file: of words for `fsachain decode --arpa`, of either for `fsachain arpa-lm`.
    Example: fsachain estimate-arpa train/text grammar.arpa --lang lang --units words --order 3
    """
    usable = _usable(text, lang.lexicon, out, resources)
    vocabulary: Sequence[str] = lang.spoken_words
    if units == "phones":
        vocabulary = tuple(lang.lexicon.phones)
        drawn = _drawn_phones(lang, usable, experiment.phone_lm, seed)
        usable = [[vocabulary[phone - 1] for phone in phones] for phones in drawn]
    make_grammar(usable, vocabulary, out, order)
    return f"{order}-gram of {units}"


def make_grammar(
    transcripts: Iterable[Sequence[str]], vocabulary: Sequence[str], out: Path, order: int
) -> None:
    with counter("n-gram"):
        write_text(out, grammar.estimate_arpa(list(transcripts), order, vocabulary=vocabulary))


@command(arpa=FILE, out=OUT)
def arpa_lm(arpa: Path, out: Path, lang: Lang = lang_option, units: str = units_option) -> str:
    """Turn an ARPA file into a language model for a denominator.

    In: ARPA, an n-gram over words or phones, such as lmplz, SRILM or `fsachain estimate-arpa` make. Each history gets an arc
    for each unit, with the one probability that the model gives it: meant for phones and small vocabularies.
    Out: OUT, an OpenFst acceptor over phone ids, for `fsachain den-graph`.
    Example: fsachain arpa-lm grammar.arpa graphs/arpa_lm.fst --lang lang --units words
    """
    with counter("phone language model"):
        if units == "phones":
            fsa = grammar.ngram_acceptor(arpa, lang.lexicon.phones)
        else:
            fsa = _spelled_out(grammar.ngram_acceptor(arpa, lang.lexicon.words), lang)
    return write_phone_lm(out, fsa, lang.lexicon.phones)
