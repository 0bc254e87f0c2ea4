#!/usr/bin/env bash
# Makes a virtual environment in which vLLM 0.33.0 runs its scheduler on a CPU, beside this project's attrs and
# pytest, and unpacks vLLM's own tests there. Nothing of it is committed, and nothing of this project is installed.
#
# Usage: scripts/engines_vllm.sh [FOLDER]      (default: .venv-vllm; about 1.6 GB on disk, some two minutes)
#
# vLLM is built from its source distribution without kernels: that is ten seconds, a third of the wheel's size, and
# it carries the tests. PYTHON names the interpreter (default: python3, 3.10 to 3.13). pip's own configuration decides
# where packages come from. Running the script again on a folder that is complete does nothing; a set-up that was
# interrupted is done again.
set -euo pipefail
cd "$(dirname "$0")/.."

folder="${1:-.venv-vllm}"
python="${PYTHON:-python3}"
version=0.33.0
stamp="$folder/.vllm-$version"

if [ -e "$stamp" ]; then
    echo "vLLM $version is ready in $folder"
    exit 0
fi

"$python" -m venv --clear "$folder"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)

# torch first: vLLM's build asks for it. vLLM's pins speak of the GPU builds, so its packages follow by name.
"${pip[@]}" "torch==2.13.0" "numpy<2.5" setuptools setuptools-scm setuptools-rust wheel packaging jinja2 \
    cmake ninja
"${pip[@]}" --constraint constraints.txt attrs pytest pytest-timeout hypothesis
"${pip[@]}" pydantic regex cbor2 psutil pyzmq "transformers==5.19.0" "tokenizers>=0.23.2" \
    "huggingface_hub>=1.31" msgspec cloudpickle prometheus_client blake3 py-cpuinfo cachetools einops requests pillow \
    aiohttp tiktoken sentencepiece protobuf oss-harmony "openai>=2.25" pybase64 uvloop fastapi opentelemetry-api \
    partial-json-parser "llguidance>=1.7,<1.8" apache-tvm-ffi diskcache lark gguf pytest-asyncio
"${pip[@]}" --no-deps "xgrammar==0.2.8" "compressed-tensors==0.18.0" loguru

export VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE="$version"
"$folder/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --no-binary vllm --dest "$folder/source" "vllm==$version"
sdist=$(find "$folder/source" -name "vllm-$version.tar.gz")
"${pip[@]}" --no-deps --no-build-isolation "$sdist"
tar -xzf "$sdist" -C "$folder/source" --strip-components=1 "vllm-$version/tests"

touch "$stamp"
echo "vLLM $version is ready in $folder"
