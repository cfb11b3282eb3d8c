"""The node agent: what starts, watches and stops the processes of jobs on one machine.

``keeper`` is the supervisor, a small process next to each gang's ranks, ``agent`` the one on each machine; ``messages`` is what the
agent and the arbiter send each other, ``channel`` one way of carrying it.
"""
