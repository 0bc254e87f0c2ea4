"""Adapters: one module for each system that a scheduler already uses.

An adapter stands between the lifecycle and one engine, transfer library or store. It does two things and
nothing else. It turns what that system says into events of the contract (a poll result becomes
``transfer_succeeded``, ``transfer_failed`` or ``transfer_drained``), and it carries out the effects that the
lifecycle returns, by implementing the Protocols of :mod:`lifecycle.ports` (``KVPool``, ``TransferEngine``,
``Reporter``, ``PrefixCache``). It decides nothing: who frees the pages of a request, and which finish reason
the client sees, is settled by the declared table.

A module imports its system when it is used, not when it is imported, so that an adapter can be looked at,
typed and tested where the system is not installed.
"""
