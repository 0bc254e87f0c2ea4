#!/usr/bin/env bash
# Makes a virtual environment in which the real SGLang runs on a CPU.
#
# Usage: scripts/engines_sglang.sh [FOLDER]      (default: .venv-sglang; about 2 GB on disk, some two minutes)
#
# It holds SGLang 0.5.23. PYTHON names the interpreter (default: python3, 3.10 to 3.13). pip's own configuration
# decides where packages come from. Running the script again on a folder that is complete does nothing.
set -euo pipefail

folder="${1:-.venv-sglang}"
python="${PYTHON:-python3}"
version=0.5.23
stamp="$folder/.engine-sglang-$version"

if [ -e "$stamp" ]; then
    echo "SGLang $version is ready in $folder"
    exit 0
fi

"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)

"${pip[@]}" "torch==2.13.0" numpy "attrs==26.1.0" "pytest==9.2.0" "pytest-timeout==2.4.0" "hypothesis>=6.100"

# SGLang comes without what it asks for, most of which is for GPUs. What its scheduler imports on the way follows
# by name.
"${pip[@]}" --no-deps "sglang==$version" "compressed-tensors==0.18.0" loguru triton
"${pip[@]}" orjson psutil pybase64 requests packaging pillow starlette msgspec pydantic pyzmq tqdm IPython aiohttp \
    "transformers==5.19.0" dill "apache-tvm-ffi==0.1.11" sentencepiece gguf "openai==2.8.0" partial_json_parser \
    einops setproctitle uvicorn fastapi

touch "$stamp"
echo "SGLang $version is ready in $folder"
