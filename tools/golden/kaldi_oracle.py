"""Training graphs by Kaldi's own code; run by an interpreter that has kaldi-hmm-gmm, and nothing of this package.

    python tools/golden/kaldi_oracle.py FOLDER

FOLDER/jobs.json is a list of objects: `topology` (text of a topo file), `pdf_classes` (number for each phone, from id 1),
`sets` (lists of phone ids that share pdfs), `lexicon` (an OpenFst file: phones in, words out), `scales` (transition scale,
self-loop scale), `transcripts` (lists of word ids). For job j and transcript t FOLDER/j.t.fst is written, labels transition
ids, and for job j FOLDER/j.pdfs.json, the pdf of each transition id, and FOLDER/j.costs.json, processor time and number of
arcs of each graph. The package hangs beside newer versions of kaldifst, hence a process apart.
"""

import json
import sys
import time
from pathlib import Path

import kaldi_hmm_gmm
import kaldifst


def main(folder: Path) -> None:
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
        topology = kaldi_hmm_gmm.HmmTopology()
        topology.read(job["topology"])
        context = kaldi_hmm_gmm.monophone_context_dependency_shared(job["sets"], [-1, *job["pdf_classes"]])
        model = kaldi_hmm_gmm.TransitionModel(context, topology)
        options = kaldi_hmm_gmm.TrainingGraphCompilerOptions(*job["scales"], True)
        lexicon = kaldifst.StdVectorFst.read(str(folder / job["lexicon"]))
        compiler = kaldi_hmm_gmm.TrainingGraphCompiler(model, context, lexicon, [], options)
        costs = []
        for place, words in enumerate(job["transcripts"]):
            begin = time.process_time()
            graph = compiler.compile_graph_from_text(words)
            seconds = time.process_time() - begin
            costs.append([seconds, sum(map(graph.num_arcs, range(graph.num_states)))])
            graph.write(str(folder / f"{number}.{place}.fst"))
        (folder / f"{number}.costs.json").write_text(json.dumps(costs))
        pdfs = [model.transition_id_to_pdf(label) for label in range(1, model.num_transition_ids + 1)]
        (folder / f"{number}.pdfs.json").write_text(json.dumps(pdfs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
