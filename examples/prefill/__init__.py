"""A small disaggregated-prefill worker, whole: pages, forward passes, transfers, clients, faults.

Read in this order:

1. ``scheduler.py``: the scheduler. This is how a scheduler embeds :mod:`lifecycle`.
2. ``handwritten.py``: the same decisions as engines write them by hand. It is a drop-in for the driver.
3. What both run on: ``model.py`` (forward passes in a device thread), ``engine.py`` (page copies in a
   transfer thread), ``receiver.py`` (the decode worker, which checks every byte), ``clients.py`` (aborts from
   a thread of their own), ``load.py`` (seeded requests and faults), ``pages.py`` (two ways to allocate).
4. Who judges: ``ledger.py`` counts pages, ``witness.py`` compares what happened with what clients were told.
5. ``run.py`` puts one worker together and runs it; ``report.py`` prints.

Nothing in it is simulated but the model's arithmetic and the faults of the network: pages are torch tensors,
copies are copies, threads are threads. One thing is stricter than in real life: the threads work in *beats*,
beside the scheduler's turn of the loop and not past its end, so that the same seed makes the same decisions.
"""
