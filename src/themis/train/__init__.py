"""Interface for training scripts: progress, preemption, checkpoints. Five lines make a loop resumable::

    from themis import train

    run = train.Run(save=save, load=load)  # save(path) and load(path) are yours
    for step in run.steps(10_000):  # continues where the last checkpoint left off
        run.report(loss=train_step(step))

Works the same without Themis around it. It imports the standard library alone; ``themis.train.pytorch``,
``.huggingface``, ``.keras`` and ``.lightning`` import their framework. Gavel §6 has the idea of the iterator.
"""

from themis.train.checkpoints import Checkpoints
from themis.train.run import PREEMPTED, Run

__all__ = ["PREEMPTED", "Checkpoints", "Run"]
