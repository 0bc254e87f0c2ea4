"""The harness for authors of schedulers: a model of the contract that watches what a scheduler does."""
