#!/bin/sh
# Prints the newest released Python that Waypost runs on (3.11 or newer), or PYTHON if that is set and can;
# else says in one line what is missing.
# A name on PATH proves nothing (a pyenv shim may point nowhere), so every candidate is asked.
usable='import sys; sys.exit(sys.version_info < (3, 11) or sys.version_info.releaselevel != "final")'

if [ -n "$PYTHON" ]; then
    candidates=$PYTHON
else
    candidates=""
    minor=30
    while [ "$minor" -ge 11 ]; do
        candidates="$candidates python3.$minor"
        minor=$((minor - 1))
    done
    candidates="$candidates python3 python"
fi

for name in $candidates; do
    if "$name" -c "$usable" >/dev/null 2>&1; then
        exec "$name" -c 'import sys; print(sys.executable)'
    fi
done
echo "waypost: needs Python 3.11 or newer (tried ${PYTHON:-PATH}); name one: make setup PYTHON=/path/to/python3.12" >&2
exit 1
