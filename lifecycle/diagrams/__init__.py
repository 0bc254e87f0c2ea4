"""Pictures and machines drawn from a declared table, one module a format; they all read the same rows.

``mermaid`` needs nothing. ``machine`` builds a real ``transitions.Machine`` (extra ``[diagrams]``).
"""
