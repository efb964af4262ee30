"""Training.

trainer      epochs from start or checkpoint to the final model: `Trainer`
config       options: `TrainConfig`; dataclasses from tables, tables from YAML
source       which utterances take part, in which batches; from memory or from disk
step         one batch: loss, gradient, optimiser; one evaluation
optimizer    optimisers by name, all that is scheduled, limits on a step
schedule     learning rate, and any other value, as a function of progress
world        the processes that train together
checkpoint   safetensors files, and how a training is taken up again after any end
ending       the final model, made of those of the last epochs
reporting    what a person and the log are told
log          JSON lines for a program
stopping     SIGTERM
"""
