"""`fsachain config` and `--set`: the page of the documentation is current, every option is explained and can be changed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fixtures import assert_one_line
from context_trees import full_tree
from refusals import refuses

from fsachain.asr.cli.config import NETWORKS, SECTIONS, Experiment, options_of, read_experiment
from fsachain.asr.data.features import FeatureConfig
from fsachain.asr.train.config import load_yaml
from fsachain.errors import ConfigError
from fsachain.graph.topology import Topology

ROOT = Path(__file__).resolve().parents[2]


def sized(experiment):
    return replace(experiment, features=FeatureConfig(num_mel_bins=40))


def every_option():
    sections = {name: getattr(Experiment(), name) for name in SECTIONS if name != "network"}
    for name, section in [*sections.items(), *(("network", network) for network in NETWORKS.values())]:
        yield from options_of(section, name)


def test_page_of_the_documentation_is_what_the_command_prints(fsachain):
    printed, page = fsachain("config").out, ROOT / "docs/configuration.md"
    assert printed == page.read_text(), "make it anew: fsachain config > docs/configuration.md"
    assert max(map(len, printed.splitlines())) <= 125


def test_every_option_has_a_meaning_and_every_number_a_unit():
    for option in every_option():
        assert len(option.meaning) > 5, option.name
        first = next(iter(option.default), 0) if isinstance(option.default, list) else option.default
        if isinstance(first, int | float) and not isinstance(first, bool):
            assert option.unit, option.name


def test_section_is_a_part_of_the_page(fsachain):
    part = fsachain("config", "--section", "decoding").out
    assert part.startswith("## decoding\n") and "`decoding.search.beam` = `16.0` (nats)" in part
    assert part in fsachain("config").out
    assert fsachain("config", "--section", "decoding", "--defaults").status == 2


def test_file_of_defaults_is_a_configuration_that_changes_nothing(fsachain, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(fsachain("config", "--defaults").out)
    read = Experiment.read(path)
    assert read.to_dict() == {**Experiment().to_dict(), "network": load_yaml(path)["network"]}
    spec, default = (sized(one).network_spec(5) for one in (read, Experiment()))
    assert spec.config == default.config
    assert fsachain("config", "--diff", path).out == f"{path}: every option has its default\n"


def test_configuration_survives_its_own_dictionary():
    refuses(ConfigError, r"network: expected a table, got \[3\]", Experiment.from_dict, {"network": [3]})
    experiment = Experiment.from_dict({"lang": {"silence": None}, "network": {"channels": 32}})
    assert Experiment.from_dict(experiment.to_dict()) == experiment


def test_differences_name_option_value_and_default(fsachain, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "train: {num_epochs: 3, schedule: {peak: 1.0e-3}, optimizer: {factors: {encoder: 0.1}}}\n"
        "network: {kind: conformer, chunk: 8}\n"
    )
    assert fsachain("config", "--diff", path).out.splitlines() == [
        "network.kind: conformer (default tdnnf)",
        "network.chunk: 8 (default 0)",
        "train.num_epochs: 3 (default 16)",
        "train.schedule.peak: 0.001 (default 0.004)",
        "train.optimizer.factors.encoder: 0.1",
    ]


@pytest.mark.parametrize("option", [option for option in every_option() if option.default is not None])
def test_every_option_can_be_set_from_the_command_line(option):
    """Its default given again changes nothing: the name is known and the value is of its type."""
    section, name = option.name.split(".")[:2]
    is_of_conformers = section == "network" and name not in vars(NETWORKS["tdnnf"])
    kind = f"network.kind={'conformer' if is_of_conformers else 'tdnnf'}"
    made = read_experiment(None, [kind, f"{option.name}={option.default}"])
    if section == "network":
        _ = sized(made).network_spec(5).config
    else:
        assert made == read_experiment(None, [kind])


def test_set_changes_what_the_file_says(fsachain, built):
    (built / "config.yaml").write_text("lang: {topology: chain}\n")
    step = "lang lexicon.txt other --config config.yaml"
    for change, pdfs in (("", 12), (" --set lang.topology=chain-one-pdf", 6)):
        assert fsachain(step + change).out.startswith(f"2 words, 6 phones, {pdfs} pdfs")


@pytest.mark.parametrize(
    ("settings", "star"),
    [
        (["forgive.deletion=0"], "frames"),
        (["forgive.substitution=5", "forgive.star=sum"], "sum"),
        (["forgive.substitution=5", "phone_lm.ngram_order=0"], "sum"),  # of CTC
        (["forgive.insertion=5"], "sum"),  # nothing has a star: known as before there was a choice
        ([], "sum"),
    ],
)
def test_a_star_that_is_not_given_is_of_frames_where_there_is_a_denominator_of_phones(settings, star):
    made = read_experiment(None, settings)
    assert made.settled().forgive == replace(made.forgive, star=star)
    wide = full_tree("ab", Topology.chain(), 3, 1)
    assert made.settled(wide).forgive.star == "sum"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train", "--set train: expected SECTION.OPTION=VALUE"),
        ("lang.silence.x=3", "--set lang.silence.x=3: silence is 'SIL', not a section"),
        ("train.num_epochs=[", "--set train.num_epochs=[: '[' is no YAML value"),
        ("train.num_epoch=3", "train.num_epoch: unknown option; did you mean 'num_epochs'?"),
        ("phone_lm.ngram_order=1", "phone_lm.ngram_order: 1; expected 0, or 2 and more"),
    ],
)
def test_a_wrong_change_is_one_line_before_any_work(fsachain, built, change, message):
    (built / "config.yaml").write_text("lang: {silence: SIL}\n")
    assert_one_line(fsachain("lang lexicon.txt other --config config.yaml --set", change), message)
    assert not (built / "other").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("trian.seed=1", "trian: unknown option; did you mean 'train'"),
        ("lang.context=triphone", "context: 'triphone' is not one of monophone, biphone"),
        ("features.kind=plp", "kind: 'plp'"),
        ("features.sample_rate=-1", "sample_rate is -1"),
        ("features.num_mel_bins=-1", "num_mel_bins is -1"),
        ("features.frame_shift_ms=0.0", "frame_shift_ms is 0.0"),
        ("augment.time_masks=-1", "time_masks is -1"),
        ("augment.frame_shift=-2", "frame_shift is -2"),
        ("augment.time_mask_fraction=1.5", "time_mask_fraction is 1.5"),
        ("augment.frequency_warp=0.5", "frequency_warp is 0.5"),
        ("network.channels=0", "channels is 0"),
        ("network.dropout=1.0", "dropout is 1.0"),
        ("network.bottleneck=-1", "bottleneck is -1"),
        ("network.dropout_kind=channel", "dropout_kind: 'channel' is not one of frame, utterance"),
        ("network.time_strides=[1, -1]", "time_strides"),
        ("network.subsampling_layer=40", "subsampling_layer is 40; expected a number in"),
        ("network.input_kernel=2", "skips frames"),
        ("network.kind=conformer network.channels=0", "channels is 0"),
        ("network.kind=conformer network.num_heads=0", "num_heads is 0"),
        ("network.kind=conformer network.channels=18", "channels is 18; expected a multiple of 8"),
        ("network.kind=conformer network.kernel=4", "kernel is 4; expected an odd number"),
        ("network.kind=conformer network.num_layers=1000000000", "num_layers is 1000000000; expected a number in"),
        ("network.kind=conformer network.subsampling=5", "subsampling is 5; expected one of 1, 2, 3, 4, 6"),
        ("network.kind=conformer network.chunk=-1", "chunk is -1; expected at least 0"),
        ("network.kind=conformer network.dropout=1.0", "dropout is 1.0"),
        ("network.kind=conformer network.norm=group", "norm: 'group' is not one of layer, batch"),
        ("network.kind=conformer network.xent=shared", "xent: 'shared' is not one of none, branch"),
        ("train.num_epochs=many", r"train\.num_epochs: expected int"),
        ("train.batch_size=0", "batch_size"),
        ("train.micro_batch=-1", "micro_batch is -1; expected at least 0"),
        ("train.schedule.warmup=1.0", "warmup is 1.0"),
        ("train.schedule.peak=0.0", "peak is 0.0; expected more than 0"),
        ("train.schedule.decay=exponential train.schedule.final=0.0", "exponential decay never reaches 0"),
        ("train.optimizer.max_grad_norm=0.0", "max_grad_norm is 0.0; expected more than 0"),
        ("rescoring.num_hypotheses=0", "num_hypotheses is 0; expected at least 1"),
        ("rescoring.lm_weights=[1,1]", "rescoring.lm_weights: expected one or more different numbers"),
        ("train.dropout_schedule=0,1@0.5,0", "dropout_schedule: 1.0 is not in"),
        ("train.combine=best", "combine: 'best' is not one of mean, best-average, none"),
        ("train.optimizer.betas=[0.9]", "betas: expected 2 values"),
        ("train.optimizer.name=lion", "'lion'"),
        ("train.optimizer.factors.encoder=x", "train.optimizer.factors.encoder: expected float"),
        ("train.optimizer.freeze_epochs.encoder=-1", "freeze_epochs: -1.0 for 'encoder'"),
        ("train.optimizer.decayed=bias", "decayed: 'bias' is not one of all, weights"),
        ("train.num_epochs=0", "train.num_epochs is 0; expected at least 1"),
        ("lang.silence_prob=2", r"lang.silence_prob: 2\.0 is not in \(0, 1\)"),
        ("decoding.search.beam=-1", "decoding.search.beam is -1.0; expected more than 0"),
        ("phone_lm.no_prune_ngram_order=0", "phone_lm.no_prune_ngram_order is 0; expected at least 1"),
        ("phone_lm.num_extra_lm_states=-1", "phone_lm.num_extra_lm_states is -1; expected at least 0"),
        ("phone_lm.edge_silence=1.5", "phone_lm.edge_silence is 1.5; expected a number in"),
        ("phone_lm.between_silence=-0.5", "phone_lm.between_silence is -0.5; expected a number in"),
        ("forgive.insertion=5,-1@0.5,5", "forgive.insertion = -1.0: expected a penalty"),
        ("decoding.frame_shift=-1", "decoding.frame_shift is -1; expected at least 0"),
        ("decoding.first_pass_share=1.5", "decoding.first_pass_share is 1.5; expected a number in"),
        ("perturbation.speeds=[]", "perturbation.speeds: is empty"),
        ("perturbation.speeds=[3]", "speed is 3.0; expected 0.5 to 2.0"),
        ("perturbation.noise=[9,5]", r"perturbation.noise is \(9.0, 5.0\); expected a lowest and a highest"),
        ("perturbation.noise=[5]", "perturbation.noise: expected 2 values, got 1"),
        ("perturbation.volume=[0,1]", r"volume is \(0.0, 1.0\); expected a positive lowest and highest"),
        ("perturbation.volume=[2,1]", r"volume is \(2.0, 1.0\); expected a positive lowest and highest"),
        ("supervision.left_tolerance=-1", "left_tolerance is -1; expected at least 0"),
        ("supervision.overlap_frames=-1", "overlap_frames is -1; expected at least 0"),
        ("supervision.chunk_frames=30 supervision.overlap_frames=30", "chunk_frames: 30 is not more"),
        ("loss.leaky_hmm_coefficient=0.1,2", r"loss.leaky_hmm_coefficient = 2.0; .* \[0, 1\]"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        sized(read_experiment(None, re.split(r" (?=\w+\.)", settings))).network_spec(5).build()


def test_an_option_that_went_away_is_told_and_has_no_influence(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("decoding: {search: {search: viterbi, beam: 9}}\ntrain: {ema: 0.9, seed: 3}\n")
    found, errors = read_experiment(path), capsys.readouterr().err
    assert (found.decoding.search.beam, found.train.seed) == (9, 3)
    assert "config.yaml: decoding.search.search is no option any more" in errors
    assert "train.ema is no option any more: train.average_last has" in errors
    path.write_text("train: {ema: 0.0, combine_on: dev, combine: mean}\n")  # of which nothing was asked
    assert read_experiment(path).train.combine == "mean" and not capsys.readouterr().err
