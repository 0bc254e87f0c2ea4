#!/usr/bin/env bash
# The virtual environment of the transfer engines' contract suites. Mooncake needs libibverbs1 (Debian's name).
set -euo pipefail
venv=$1
test -e "$venv/.ready-transfer" && exit 0
ldconfig -p | grep -q libibverbs.so.1 || apt-get install -y -q libibverbs1
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy attrs==26.1.0 hypothesis pytest pytest-timeout
touch "$venv/.ready-transfer"
