"""The node agent: what starts, watches and stops the processes of jobs on one machine.

``keeper`` is the small process beside each gang's ranks, ``agent`` the one on each machine; ``messages`` is what the
agent and the arbiter say to each other, ``channel`` one way of carrying it.
"""
