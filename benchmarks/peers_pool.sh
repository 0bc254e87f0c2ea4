#!/usr/bin/env bash
# Makes a virtual environment with the two peers that benchmarks/bench_pool.py compares kvpool with:
# SGLang 0.5.23 and vLLM 0.33.0, both on the CPU build of torch, and nothing of this project but attrs.
#
# Usage: benchmarks/peers_pool.sh [FOLDER]      (default: .venv-peers; about 4 GB on disk)
#
# PYTHON names the interpreter (default: python3, 3.10 to 3.13). pip's own configuration decides where
# packages come from. Running the script again on a folder that is complete does nothing.
set -euo pipefail

folder="${1:-.venv-peers}"
python="${PYTHON:-python3}"
stamp="$folder/.peers-pool-0.5.23-0.33.0"

if [ -e "$stamp" ]; then
    echo "peers are ready in $folder"
    exit 0
fi

"$python" -m venv "$folder"
# The engines pin versions that exclude one another; pip would say so at length, and install all the same.
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)

"${pip[@]}" "torch==2.13.0" numpy attrs

# The engines themselves come without what they ask for (most of it is for GPUs). Their allocators import a
# good part of the engine all the same, so the packages that these imports meet follow by name.
"${pip[@]}" --no-deps "sglang==0.5.23" "vllm==0.33.0" "compressed-tensors==0.18.0" \
    "xgrammar==0.2.8" triton loguru
"${pip[@]}" orjson psutil pybase64 requests packaging pillow starlette msgspec pydantic pyzmq tqdm \
    IPython aiohttp "transformers==5.19.0" dill "apache-tvm-ffi==0.1.11" sentencepiece gguf \
    "openai>=2.25" partial_json_parser einops setproctitle uvicorn fastapi cbor2 regex cloudpickle \
    prometheus_client blake3 py-cpuinfo cachetools tiktoken protobuf oss-harmony uvloop \
    opentelemetry-api "llguidance>=1.7,<1.8"

touch "$stamp"
echo "peers are ready in $folder"
