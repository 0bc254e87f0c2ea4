#!/usr/bin/env bash
# Runs vLLM's own tests of a KV connector's life, alone and then with every scheduler governed: as many must pass.
#
# Usage: scripts/vllm_own_tests.sh [FOLDER]      (the environment of scripts/engines_vllm.sh; default: .venv-vllm)
#
# The tests come with vLLM's source, which that script unpacked; nothing of them is kept in this repository.
set -euo pipefail

folder="$(realpath "${1:-.venv-vllm}")"
here="$(realpath "$(dirname "$0")/..")"
files=()
for name in remote_decode_lifecycle remote_prefill_lifecycle invalid_blocks_correctness kv_load_failure_recovery \
    error_propagation cache_pollution_prevention; do
    files+=("tests/v1/kv_connector/unit/test_$name.py")
done
empty="$(mktemp --suffix .ini)"
trap 'rm -f "$empty"' EXIT

cd "$folder/source"
for govern in "" 1; do
    if [ -n "$govern" ]; then echo "vLLM's own tests, governed"; else echo "vLLM's own tests, alone"; fi
    GOVERN="$govern" PYTHONPATH="$here/tests/engines/vllm:.:$here" VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1 \
        "$folder/bin/python" -m pytest -q -c "$empty" --rootdir . --noconftest -p own_tests_plugin -W ignore \
        "${files[@]}"
done
