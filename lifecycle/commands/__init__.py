"""The commands of ``lifecycle``, a module each; :mod:`lifecycle.cli` lists them."""
