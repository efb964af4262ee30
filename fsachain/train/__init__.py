"""Training: loop, schedule, checkpoints, log.

trainer      epochs from start or checkpoint to the final model: `Trainer`
step         one batch: loss, gradient, optimiser
source       which utterances take part, in which batches
config       options: `TrainConfig`, and dataclasses from tables
yaml_file    tables from YAML
schedule     learning rate as a function of the step
optimizer    Adam, AdamW, SGD
state        where a training stands, and how it is taken up again
checkpoint   safetensors files, averages of models
resume       checkpoint and log, brought to one position after any end
stopping     SIGTERM
diagnosis    what to tell about utterances and batches that cannot be used
batch_norm   statistics for averaged weights
progress     bar or lines for a person
log          JSON lines for a program
"""
