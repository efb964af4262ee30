"""Imported by the fork server of `process_group` alone: loads and compiles what is needed before the children come."""

import torch

from fsachain.backends.cpu.threads import set_num_threads

torch.set_num_threads(1)  # threads do not survive a fork
set_num_threads(1)

from shared_work import gradient

from fsachain.asr.train.world import World

for kind in ("linear", "tdnnf"):
    gradient(World.alone(), (kind, [["utt00", "utt01"], ["utt02"]], "float32"))
