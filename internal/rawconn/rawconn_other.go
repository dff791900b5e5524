//go:build !linux

package rawconn

import "net"

// Wrap returns c: only Linux has a faster connection.
func Wrap(c net.Conn) net.Conn { return c }
