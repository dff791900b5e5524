#!/bin/sh
# After the package is unpacked. deb calls this with "configure" and the version before, rpm with how many versions there are now.
set -e
case "$1" in
configure | [0-9]*) ;;
*) exit 0 ;;
esac
if ! getent passwd rlnode >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/rlnode --no-create-home --shell /usr/sbin/nologin rlnode
fi
install -d -o rlnode -g rlnode -m 0700 /var/lib/rlnode
# Secrets lie there.
chgrp rlnode /etc/rlnode
chmod 0750 /etc/rlnode
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart rlnode.service
fi
# A first start founds a cluster, so that it has to wait for its settings.
if [ "$1" = 1 ] || { [ "$1" = configure ] && [ -z "$2" ]; }; then
	echo "rlnode is installed and not started. See /etc/rlnode/rlnode.yaml, then: systemctl enable --now rlnode"
fi
