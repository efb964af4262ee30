"""What `test_integrations` runs in the environment of the trainers: losses inside the toolkits that call them.

    python integration_programs.py PROGRAM, where run_PROGRAM is one of the functions below

Models have random weights, so that nothing is downloaded.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import torch
from tolerances import TOOLKIT_FLOAT32

from fsachain import rnnt_loss
from fsachain.integrations import warprnnt
from fsachain.integrations.reduction import reduce_losses

CTC_MODELS = [
    "Wav2Vec2",
    "Hubert",
    "WavLM",
    "UniSpeech",
    "UniSpeechSat",
    "SEW",
    "Data2VecAudio",
    "Wav2Vec2Conformer",
]
WIDTH = 6


def close(ours, theirs):
    largest = theirs.detach().abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOOLKIT_FLOAT32 * largest, check_dtype=False)


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def with_both_losses(model, loss, **batch):
    """Loss and gradients of the model's own loss and of ours are equal."""
    results = []
    for function in (None, loss):
        if function is not None:
            model.loss_function = function
        value = model(**batch).loss
        value.backward()
        results.append((value.detach(), gradients(model)))
    (theirs, their_gradients), (ours, our_gradients) = results
    close(ours, theirs)
    assert their_gradients.keys() == our_gradients.keys()
    close(
        *(torch.cat([each.view(-1) for each in found.values()]) for found in (our_gradients, their_gradients))
    )


def small_ctc_model(name, **options):
    import transformers

    torch.manual_seed(0)
    if name == "Parakeet":
        encoder = small_parakeet_encoder()
        config = transformers.ParakeetCTCConfig(
            vocab_size=WIDTH, pad_token_id=WIDTH - 1, encoder_config=encoder, **options
        )
        return transformers.ParakeetForCTC(config)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (10, 4), "conv_stride": (5, 4)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "squeeze_factor": 1}
    classes = {"vocab_size": WIDTH, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(
        **sizes, **convolutions, **positions, **classes, **options
    )
    return getattr(transformers, f"{name}ForCTC")(config)


def small_parakeet_encoder():
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.ParakeetEncoderConfig(**sizes, subsampling_conv_channels=8, num_mel_bins=16)


def run_transformers_ctc():
    from fsachain.integrations.transformers import CTC

    labels = torch.tensor([[3, 3, 1, -100], [2, -100, -100, -100]])
    audio = torch.randn(2, 800, generator=torch.Generator().manual_seed(1))
    for name in CTC_MODELS:
        for reduction in ("sum", "mean"):
            model = small_ctc_model(name, ctc_loss_reduction=reduction).eval()
            with_both_losses(model, CTC(), input_values=audio, labels=labels)
    features = torch.randn(2, 96, 16, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 96, dtype=torch.bool)
    with_both_losses(
        small_ctc_model("Parakeet").eval(), CTC(), input_features=features, attention_mask=mask, labels=labels
    )


def run_transformers_transducer():
    import transformers
    from transformers.loss.loss_tdt import tdt_loss

    from fsachain.integrations.transformers import RNNT, TDT

    sizes = {
        "vocab_size": WIDTH,
        "decoder_hidden_size": 8,
        "num_decoder_layers": 1,
        "blank_token_id": WIDTH - 1,
    }
    sizes |= {"pad_token_id": 0, "encoder_config": small_parakeet_encoder()}
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, 96, 16, generator=generator)
    mask = torch.ones(2, 96, dtype=torch.bool)
    mask[1, 70:] = False
    batch = {"input_features": features, "attention_mask": mask}

    torch.manual_seed(0)
    model = transformers.ParakeetForTDT(
        transformers.ParakeetTDTConfig(**sizes, durations=[0, 1, 2, 4])
    ).eval()
    labels = torch.tensor([[1, 3, 2], [4, 0, 0]])
    prompt = torch.cat([torch.full((2, 1), WIDTH - 1), labels], dim=1)
    with_both_losses(model, TDT(), **batch, labels=labels, decoder_input_ids=prompt)

    logits = torch.randn(3, 9, 4, WIDTH + 4, generator=generator).requires_grad_()
    targets, frames, counts = (
        torch.tensor([[1, 2, 3], [4, 1, 1], [2, 2, 1]]),
        torch.tensor([9, 5, 7]),
        torch.tensor([3, 1, 2]),
    )
    parts = logits[..., :WIDTH], logits[..., WIDTH:]
    for reduction in ("mean_volume", "mean_batch", "mean", "sum", "none"):
        options = {"durations": [0, 1, 2, 4], "sigma": 0.05, "reduction": reduction}
        theirs = tdt_loss(*parts, targets, frames, counts, WIDTH - 1, **options)
        ours = TDT()(*parts, targets, frames, counts, WIDTH - 1, **options)
        close(ours, theirs)
        (their_gradient,) = torch.autograd.grad(theirs.sum(), logits, retain_graph=True)
        (our_gradient,) = torch.autograd.grad(ours.sum(), logits, retain_graph=True)
        close(our_gradient, their_gradient)

    model = transformers.ParakeetForRNNT(transformers.ParakeetRNNTConfig(**sizes)).eval()
    model.loss_function = RNNT()
    labels = torch.tensor([[1, 3, 2], [4, WIDTH - 1, WIDTH - 1]])  # this model counts what is not the blank
    prompt = torch.cat([torch.full((2, 1), WIDTH - 1), labels], dim=1)
    output = model(**batch, labels=labels, decoder_input_ids=prompt)
    output.loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    frames = model.encoder(features, mask, output_attention_mask=True).attention_mask.sum(-1)
    losses = rnnt_loss(output.logits.detach(), labels, frames, [3, 1], blank=WIDTH - 1, reduction="none")
    close(output.loss.detach(), losses.sum() / 4)


class Tones(torch.utils.data.Dataset):
    """Recordings of three tones each, one for each unit: what a network of two layers learns."""

    def __init__(self, size, seed):
        generator = np.random.default_rng(seed)
        self.units = generator.integers(1, 4, (size, 3))

    def __len__(self):
        return len(self.units)

    def __getitem__(self, n):
        time = np.arange(400)
        tones = [np.sin(time * 0.15 * 2.0 ** (unit - 1)) for unit in self.units[n]]
        return {"input_values": np.concatenate(tones).astype(np.float32), "labels": self.units[n]}


def run_transformers_trainer():
    """Hugging Face's Trainer with CTC and with LF-MMI, evaluated by WER."""
    import tempfile

    import transformers

    from fsachain.integrations.transformers import CTC, LFMMI

    train, held_out = Tones(64, 0), Tones(16, 1)

    def collate(items):
        audio = torch.tensor(np.stack([item["input_values"] for item in items]))
        return {"input_values": audio, "labels": torch.tensor(np.stack([item["labels"] for item in items]))}

    def spelled(classes):
        changes = [c for n, c in enumerate(classes) if n == 0 or c != classes[n - 1]]
        return [str(c) for c in changes if c > 0]

    def wer(prediction):
        errors, words = 0, 0
        for classes, labels in zip(prediction.predictions.argmax(-1), prediction.label_ids, strict=True):
            errors += edits(spelled(classes.tolist()), [str(label) for label in labels if label > 0])
            words += len(labels)
        return {"wer": errors / words}

    for loss in (CTC(), LFMMI.from_labels([units.tolist() for units in train.units], 4, 0)):
        transformers.set_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        convolutions = {"conv_dim": (16, 16), "conv_kernel": (20, 4), "conv_stride": (20, 2)}
        config = transformers.Wav2Vec2Config(
            **sizes,
            **convolutions,
            vocab_size=4,
            pad_token_id=0,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            ctc_loss_reduction="mean",
            apply_spec_augment=False,
            layerdrop=0.0,
        )
        model = transformers.Wav2Vec2ForCTC(config)
        model.loss_function = loss
        with tempfile.TemporaryDirectory() as folder:
            options = transformers.TrainingArguments(
                folder,
                num_train_epochs=12,
                per_device_train_batch_size=8,
                learning_rate=5e-3,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
            )
            trainer = transformers.Trainer(
                model, options, collate, train_dataset=train, eval_dataset=held_out, compute_metrics=wer
            )
            before = trainer.evaluate()
            trainer.train()
            after = trainer.evaluate()
        print(type(loss).__name__, before["eval_loss"], after["eval_loss"], after["eval_wer"])
        assert after["eval_loss"] < before["eval_loss"]
        assert after["eval_wer"] < 0.5 < before["eval_wer"]


def edits(spoken, written):
    """The Levenshtein distance."""
    row = list(range(len(written) + 1))
    for n, left in enumerate(spoken, 1):
        previous, row[0] = row[0], n
        for k, right in enumerate(written, 1):
            previous, row[k] = row[k], min(row[k] + 1, row[k - 1] + 1, previous + (left != right))
    return row[-1]


def transducer_batch(blank, width=WIDTH):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 7, 4, width, generator=generator).requires_grad_()
    labels = torch.tensor([[1, 2, 3], [4, 1, 1], [2, 2, 1]])
    labels = labels - 1 if blank else labels
    return logits, labels, torch.tensor([7, 5, 6]), torch.tensor([3, 1, 2])


def run_nemo():
    """The `rnnt.py` of the installed NeMo, whose loss registry takes warprnnt_pytorch; what else it imports is replaced."""
    folder = importlib.util.find_spec("nemo").submodule_search_locations[0]

    class Loss(torch.nn.Module):
        pass

    replaced = {
        "omegaconf": {"DictConfig": type("DictConfig", (), {}), "OmegaConf": None},
        "nemo": {},
        "nemo.collections": {},
        "nemo.collections.asr": {},
        "nemo.collections.asr.losses": {},
        "nemo.collections.asr.losses.rnnt_pytorch": dict.fromkeys(
            ("MultiblankRNNTLossPytorch", "RNNTLossPytorch", "TDTLossPytorch")
        ),
        "nemo.core": {},
        "nemo.core.classes": {"Loss": Loss, "typecheck": lambda: lambda method: method},
        "nemo.core.neural_types": dict.fromkeys(
            ("LabelsType", "LengthsType", "LogprobsType", "LossType", "NeuralType")
        ),
        "nemo.core.utils": {
            "numba_utils": type(
                "numba_utils", (), {"is_numba_cuda_fp16_supported": staticmethod(lambda **_: False)}
            )
        },
        "nemo.core.utils.k2_utils": {"K2_INSTALLATION_MESSAGE": ""},
        "nemo.core.utils.numba_utils": {"NUMBA_INSTALLATION_MESSAGE": ""},
        "nemo.utils": {"logging": None, "logging_mode": None, "model_utils": None},
    }
    for name, content in replaced.items():
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None, is_package=True), []
        vars(module).update(content)
        sys.modules[name] = module
    warprnnt.install()
    spec = importlib.util.spec_from_file_location("nemo_rnnt", f"{folder}/collections/asr/losses/rnnt.py")
    nemo = importlib.util.module_from_spec(spec)
    sys.modules["nemo_rnnt"] = nemo
    spec.loader.exec_module(nemo)
    logits, labels, frames, counts = transducer_batch(WIDTH - 1)
    losses = rnnt_loss(logits, labels, frames, counts, blank=WIDTH - 1, reduction="none")
    for reduction in ("mean_batch", "mean_volume", "mean", "sum", None):
        loss = nemo.RNNTLoss(num_classes=WIDTH - 1, reduction=reduction, loss_name="warprnnt")
        assert type(loss._loss) is warprnnt.RNNTLoss
        call = {"log_probs": logits, "targets": labels, "input_lengths": frames, "target_lengths": counts}
        value = loss(**call)
        close(value, reduce_losses(losses, counts, reduction))
        loss._loss = warprnnt.RNNTLoss(blank=WIDTH - 1, fastemit_lambda=0.01)  # the lines of the page
        close(loss(**call), value)
    loss._loss = warprnnt.TDTLoss(blank=WIDTH - 3, durations=[0, 1])
    call["targets"] = labels.clamp(max=WIDTH - 4)
    assert loss(**call).isfinite().all()


def run_espnet():
    """The standalone transducer model of ESPnet, and what it makes of our loss."""
    warprnnt.install()
    from espnet2.asr_transducer.decoder.stateless_decoder import StatelessDecoder
    from espnet2.asr_transducer.encoder.encoder import Encoder
    from espnet2.asr_transducer.espnet_transducer_model import ESPnetASRTransducerModel
    from espnet2.asr_transducer.joint_network import JointNetwork

    torch.manual_seed(0)
    block = {
        "block_type": "conformer",
        "hidden_size": 8,
        "linear_size": 8,
        "heads": 2,
        "conv_mod_kernel_size": 3,
    }
    encoder = Encoder(8, input_conf={"conv_size": 8}, body_conf=[block])
    decoder = StatelessDecoder(WIDTH, embed_size=8)
    joint = JointNetwork(WIDTH, encoder.output_size, decoder.output_size, joint_space_size=8)
    tokens = ["<blank>", "a", "b", "c", "d", "<sos/eos>"]
    model = ESPnetASRTransducerModel(
        WIDTH, tokens, None, None, None, encoder, decoder, joint, report_cer=False, report_wer=False
    )
    speech = torch.randn(2, 60, 8)
    labels = torch.tensor([[1, 2, 3], [4, -1, -1]])
    loss, stats, _ = model(speech, torch.tensor([60, 50]), labels, torch.tensor([3, 1]))
    loss.backward()
    assert type(model.criterion_transducer) is warprnnt.RNNTLoss
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    assert torch.isfinite(stats["loss_transducer"]).all()


def run_speechbrain():
    """`transducer_loss` with the call of SpeechBrain's own, which needs a GPU, and `ctc_loss` against SpeechBrain's."""
    import inspect

    without_torchaudio()
    from speechbrain.nnet import losses

    from fsachain.integrations.speechbrain import ctc_loss, transducer_loss

    for ours, theirs in ((transducer_loss, losses.transducer_loss), (ctc_loss, losses.ctc_loss)):
        names = list(inspect.signature(theirs).parameters)
        assert list(inspect.signature(ours).parameters)[: len(names)] == names
    logits, labels, frames, counts = transducer_batch(0)
    relative = frames / 7, counts / 3
    expected = rnnt_loss(logits, labels, frames, counts, blank=0, reduction="none")
    for reduction in ("none", "sum", "mean"):
        value = transducer_loss(logits, labels, *relative, blank_index=0, reduction=reduction)
        close(value, reduce_losses(expected, counts, "mean_batch" if reduction == "mean" else reduction))
    log_probs = logits[:, :, 0].log_softmax(-1)
    for reduction in ("none", "sum", "mean", "batch", "batchmean"):
        results = []
        for function in (losses.ctc_loss, ctc_loss):
            value = function(log_probs, labels, *relative, 0, reduction)
            results.append((value, *torch.autograd.grad(value.sum(), logits, retain_graph=True)))
        (theirs, their_gradient), (ours, our_gradient) = results
        close(ours, theirs)
        close(our_gradient, their_gradient)


def run_speechbrain_k2():
    """SpeechBrain's own `ctc_k2` and its graphs of a lexicon, by fsachain.k2 in place of k2; without silence it is CTC."""
    import tempfile
    from pathlib import Path

    without_torchaudio()
    from fsachain import k2

    sys.modules["k2"] = k2
    sys.modules["k2.ragged"] = k2.ragged
    from speechbrain.integrations.k2_fsa.graph_compiler import CtcGraphCompiler
    from speechbrain.integrations.k2_fsa.lexicon import Lexicon
    from speechbrain.integrations.k2_fsa.losses import ctc_k2
    from speechbrain.integrations.k2_fsa.prepare_lang import prepare_lang

    texts = ["hello world", "world hello", "hello", "world"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lexicon.txt").write_text("hello h e l l o\nworld w o r l d\n<UNK> <unk>")
        prepare_lang(Path(folder), sil_prob=0)
        lexicon = Lexicon(Path(folder))
        compiler = CtcGraphCompiler(lexicon, torch.device("cpu"))
    ids = [[lexicon.token_table[letter] for letter in text.replace(" ", "")] for text in texts]
    logits = torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(6)).requires_grad_()
    log_probs = logits.log_softmax(-1)
    counts = [len(each) for each in ids]
    for reduction in ("none", "mean", "sum"):
        ours = ctc_k2(log_probs, torch.ones(4), compiler, texts, reduction)
        flat = torch.tensor([label for each in ids for label in each])
        theirs = torch.nn.functional.ctc_loss(
            log_probs.transpose(0, 1), flat, [40] * 4, counts, reduction=reduction
        )
        close(ours, theirs)
        gradients_by_logits = [
            torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (ours, theirs)
        ]
        close(*gradients_by_logits)


def without_torchaudio():
    """SpeechBrain imports torchaudio, whose wheels on PyPI do not load next to a torch without CUDA; no loss uses it."""
    sys.modules["torchaudio"] = ModuleType("torchaudio")
    sys.modules["torchaudio"].__version__ = "2.11.1"


if __name__ == "__main__":
    globals()[f"run_{sys.argv[1]}"]()
    print("done")
