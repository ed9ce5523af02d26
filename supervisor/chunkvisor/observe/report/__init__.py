"""The report of a workdir: one HTML file with plots, made from the folder alone, beside a live run or after any end."""
