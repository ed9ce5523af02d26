"""The report of a workdir: one HTML file with plots, made from the folder alone.

It never takes the lock and changes nothing but the report: it works beside a live run, after it, and after a kill.
"""
