"""Runs workers on the nodes of a Ray cluster.

The parent never imports Ray, whose core ends the whole process when the cluster's head goes away.
A child process, the bridge, is Ray's driver; an actor on each node, the agent, runs the workers as
the local engine does.
"""
