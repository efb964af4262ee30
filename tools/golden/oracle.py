"""Jobs for `tools/golden/kaldi_oracle.py`, and what comes back as acceptors over pdfs.

What the goldens are for a handful of fixed cases this is for any lexicon, topology and transcript; `make test-kaldi`
and `make bench-graphs` use it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsachain import Fsa
from fsachain.asr.kaldi.archive import read_value
from fsachain.fsa import input_fsa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.topology import Topology
from fsachain.graph.transducer import remove_epsilons
from fsachain.openfst import Transducer, read_fst, write_fst

SCRIPT = Path(__file__).with_name("kaldi_oracle.py")
SECONDS = 120


@dataclass(frozen=True)
class Job:
    lexicon: Lexicon  # with silence; word and phone ids are its own
    topology: Topology  # without blank; every state may be stayed in
    sets: Sequence[Sequence[int]]  # phone ids that share pdfs, each phone in one set
    transcripts: Sequence[Sequence[str]]  # lists of words
    scales: tuple[float, float] = (0.0, 0.0)  # transition scale and self-loop scale


class Cost(NamedTuple):
    seconds: float
    num_arcs: int


def training_graphs(python: Path, jobs: Sequence[Job], folder: Path) -> list[list[Fsa]]:
    """Kaldi's graphs over pdfs, by job and transcript."""
    compile_jobs(python, jobs, folder)
    return [
        [_over_pdfs(folder, number, place) for place in range(len(job.transcripts))]
        for number, job in enumerate(jobs)
    ]


def compile_jobs(python: Path, jobs: Sequence[Job], folder: Path) -> list[list[Cost]]:
    """Let Kaldi compile its graphs into `folder`; what each cost, by job and transcript."""
    records = []
    for number, job in enumerate(jobs):
        name = f"{number}.lexicon.fst"
        write_fst(lexicon_transducer(job.lexicon).to_openfst(), folder / name)
        records.append(
            {
                "topology": topology_text(job.topology, len(job.lexicon.phones)),
                "pdf_classes": [job.topology.num_pdf_classes] * len(job.lexicon.phones),
                "sets": [list(phones) for phones in job.sets],
                "lexicon": name,
                "scales": list(job.scales),
                "transcripts": [[job.lexicon.word_id(w) for w in words] for words in job.transcripts],
            }
        )
    (folder / "jobs.json").write_text(json.dumps(records), encoding="utf-8")
    command = [str(python), str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return [
        [Cost(*cost) for cost in json.loads((folder / f"{number}.costs.json").read_text(encoding="utf-8"))]
        for number in range(len(jobs))
    ]


def _over_pdfs(folder: Path, job: int, place: int) -> Fsa:
    pdfs = json.loads((folder / f"{job}.pdfs.json").read_text(encoding="utf-8"))
    labels = np.array([0, *(pdf + 1 for pdf in pdfs)], dtype=np.int32)
    graph = read_value(folder / f"{job}.{place}.fst", read_fst)
    graph = replace(graph, ilabel=labels[graph.ilabel])
    return input_fsa(remove_epsilons(graph, range(len(graph.src)))[0])


def topology_text(topology: Topology, num_phones: int) -> str:
    """One entry for all phones."""
    lines = ["<Topology>", "<TopologyEntry>", "<ForPhones>", " ".join(map(str, range(1, num_phones + 1)))]
    lines.append("</ForPhones>")
    for number, state in enumerate(topology.states):
        classes = f"<ForwardPdfClass> {state.entry_class} <SelfLoopPdfClass> {state.loop_class}"
        if state.entry_class == state.loop_class:
            classes = f"<PdfClass> {state.entry_class}"
        ways = [(number, state.loop_log_prob), *topology.moves(number)]
        moves = " ".join(f"<Transition> {target} {math.exp(log_prob):.9g}" for target, log_prob in ways)
        lines.append(f"<State> {number} {classes} {moves} </State>")
    lines += [f"<State> {len(topology.states)} </State>", "</TopologyEntry>", "</Topology>"]
    return "\n".join(lines) + "\n"


def lexicon_transducer(lexicon: Lexicon) -> Transducer:
    """Optional silence at the start and after each word. State 0 starts, 1 says words, 2 says silence."""
    silence, no_silence = lexicon.silence_log_probs()
    assert lexicon.silence_phone is not None
    arcs = [(0, 1, 0, 0, no_silence), (0, 2, 0, 0, silence), (2, 1, lexicon.silence_phone, 0, 0.0)]
    num_states = 3
    for word, pronunciations in enumerate(lexicon.pronunciations, 1):
        for phones, prob in pronunciations:
            stops = [1, *range(num_states, num_states + len(phones) - 1)]
            num_states += len(phones) - 1
            for place, phone in enumerate(phones):
                label = word if place == 0 else 0
                weight = math.log(prob) if place == 0 else 0.0
                if place < len(phones) - 1:
                    arcs.append((stops[place], stops[place + 1], phone, label, weight))
                else:
                    arcs.append((stops[place], 1, phone, label, weight + no_silence))
                    arcs.append((stops[place], 2, phone, label, weight + silence))
    src, dst, ilabel, olabel, weights = (np.array(column) for column in zip(*arcs, strict=True))
    final = np.full(num_states, -math.inf)
    final[1] = 0.0
    return Transducer(num_states, 0, src, dst, ilabel, olabel, weights, final)
