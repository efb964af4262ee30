"""Corpora: Kaldi data directories, audio, features, normalisation, augmentation, batches."""

from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.augment import AugmentConfig, augment, augment_all
from fsachain.asr.data.cmvn import Cmvn, CmvnConfig
from fsachain.asr.data.dataset import (
    Batch,
    Example,
    collate,
    estimate_cmvn,
    load_examples,
    normalise,
)
from fsachain.asr.data.features import FeatureConfig
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.data.order import length_buckets

__all__ = [
    "AugmentConfig",
    "Batch",
    "Cmvn",
    "CmvnConfig",
    "DataDir",
    "Example",
    "FeatureConfig",
    "Perturbation",
    "Utterance",
    "augment",
    "augment_all",
    "collate",
    "estimate_cmvn",
    "length_buckets",
    "load_examples",
    "normalise",
]
