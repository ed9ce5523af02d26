"""What an output goes through on the disk, from staged texts to its final file.

`state` draws the stages and reads which one is reached; the other modules take an output from one
stage to the next. May import `sources` and what is below it.
"""
