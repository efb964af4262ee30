"""Pictures: of lattices, graphs, alignments, trainings and word error rates.

Each function takes arrays or a result and returns a matplotlib `Figure`. Nothing is shown, no pyplot is loaded and no
global setting changes; matplotlib and pygraphviz (extra `plot`) are imported when a picture is made. docs/plot.md has an
example of each.

plot_occupancy    transducer: node occupancies and best path
plot_trellis      LF-MMI: occupancies of numerator and denominator, and the gradient
plot_alignment    spectrogram with words and phones
plot_graph        an acceptor, whole or its most used part
plot_training     the curves of train.jsonl
plot_wer          word error rate by speaker and length
save_figure, figure_png, figure_svg    files, bytes, text
"""

from __future__ import annotations

from fsachain.asr.plot.canvas import figure_png, figure_svg, save_figure
from fsachain.asr.plot.graph import plot_graph
from fsachain.asr.plot.occupancy import (
    OccupancyPanel,
    TrellisPair,
    occupancy_panels,
    pdf_names,
    pdf_trellis,
    phone_trellis,
    plot_occupancy,
    plot_trellis,
    sum_columns,
)
from fsachain.asr.plot.results import (
    Spectrogram,
    plot_alignment,
    plot_training,
    plot_wer,
    read_events,
    spectrogram,
)

__all__ = [
    "OccupancyPanel",
    "Spectrogram",
    "TrellisPair",
    "figure_png",
    "figure_svg",
    "occupancy_panels",
    "pdf_names",
    "pdf_trellis",
    "phone_trellis",
    "plot_alignment",
    "plot_graph",
    "plot_occupancy",
    "plot_training",
    "plot_trellis",
    "plot_wer",
    "read_events",
    "save_figure",
    "spectrogram",
    "sum_columns",
]
