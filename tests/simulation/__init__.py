"""The whole service in one process under one seed: simulation testing as FoundationDB does it.

The real arbiter, journal, executor, node agents and supervisors run; simulated are time (``world``), the process tables and
signals of machines (``kernel``, ``bodies``), the network (``network``), and what a crash leaves of the disk (``disk``). A seed
gives a plan (``plan``): what users do, and which faults happen when. ``checks`` looks at what really runs, ``shrink`` shortens the
story of a failure, ``mutations`` puts faults into the code. ``python -m simulation --help`` in ``tests`` runs seeds by hand.

To add something that users do (a change of settings, say): a word of ``plan.Action`` drawn in ``plan``, and its call in
``Users._call``. To add a fault: a row of ``plan.FAULTS``, and how it is brought about in ``faults``.

FoundationDB's simulation: Zhou et al., "FoundationDB: A Distributed Unbundled Transactional Key Value Store", SIGMOD 2021, §4.
"""
