"""Check logs of any size against the contract, in constant memory: ``lifecycle check LOG...``.

- :mod:`.source` reads files: plain, gzip, zstd, a recorder's segments, standard input; and says what is damaged.
- :mod:`.checker` follows the requests, and groups what is wrong by invariant and by cell of the table.
- :mod:`.excerpt` makes the shortest trace of a group that still goes wrong in the same way.
- :mod:`.report` shows it.

Unlike :mod:`lifecycle.replay`, which answers for one well-formed trace and refuses any other, this reads what is
there: a log whose last line was cut short, that two processes wrote at once, or that holds lines of somebody else.
What cannot be read is counted and told with its line, and everything else is checked.
"""
