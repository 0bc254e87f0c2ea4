"""A pytest plugin for vLLM's own connector tests: no download, and with ``GOVERN=1`` every scheduler governed.

The tests name a model of a hub. They need its shape alone, so a configuration of that shape lies in a folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import vllm.config
from tests.v1.kv_connector.unit import utils
from vllm.v1.core.sched.scheduler import Scheduler

SHAPE = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16384,
    "vocab_size": 512,
    "word_embed_proj_dim": 64,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}

_folder = Path(tempfile.mkdtemp())
(_folder / "config.json").write_text(json.dumps(SHAPE))


def _local_model(*arguments: Any, **options: Any) -> vllm.config.ModelConfig:
    options |= {"model": str(_folder), "skip_tokenizer_init": True}
    return vllm.config.ModelConfig(*arguments, **options)


utils.ModelConfig = (
    _local_model  # there alone: patched in vllm.config, it would break vLLM's imports
)

if os.environ.get("GOVERN"):
    from adapters.vllm import govern

    _init = Scheduler.__init__

    def _governed(self: Scheduler, *arguments: Any, **options: Any) -> None:
        _init(self, *arguments, **options)
        if type(self).__name__ in ("Scheduler", "AsyncScheduler") and self.connector is not None:
            govern(self)

    Scheduler.__init__ = _governed
