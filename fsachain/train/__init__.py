"""Training: loop, schedule, checkpoints, log.

trainer      epochs from start or checkpoint to the final model: `Trainer`
step         one batch: loss, gradient, optimiser
source       which utterances take part, in which batches
share        which of them one process computes
world        the processes that train together; meeting: how they find each other
passes       forward and backward through the network; pooling: batch normalisation over processes; precision: 16 bits
skipping     batches that cannot be used; left_out: utterances that cannot
keeper       checkpoints as the first process keeps them for all; random_state: random numbers of each
config       options: `TrainConfig`, and dataclasses from tables
yaml_file    tables from YAML
schedule     learning rate as a function of the step
piecewise    any other value as a function of progress: `Schedule`
schedules    all that changes, set before each step
dropout      dropout proportions of any network
optimizer    optimisers by name, groups of parameters, frozen parameters
max_change   limits on how far a step may go
ema          moving average of the parameters
combination  the best mean of several models
ending       the final model
state        where a training stands, and how it is taken up again
checkpoint   safetensors files, averages of models
resume       checkpoint and log, brought to one position after any end
stopping     SIGTERM
diagnosis    what to tell about utterances and batches that cannot be used
batch_norm   statistics for averaged weights
progress     bar or lines for a person
log          JSON lines for a program
"""
