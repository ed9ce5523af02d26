"""The engine Ray: workers on the nodes of a Ray cluster.

The supervisor never imports Ray, whose core ends the whole process when the cluster's head goes
away. A child of it, the bridge, is Ray's driver; an actor on each node, the agent, runs the workers
as the local engine does.
"""
