#!/bin/sh
# After the package's files are gone. The data stays, but for `apt purge`.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/rlnode /etc/rlnode
	if getent passwd rlnode >/dev/null; then
		userdel rlnode
	fi
fi
