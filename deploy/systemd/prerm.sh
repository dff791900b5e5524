#!/bin/sh
# Before the package's files go. deb calls this with "remove" or "upgrade", rpm with how many versions will be left.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now rlnode.service
fi
