package api

import (
	"context"
	"net"
)

// Bounds on the system's buffers for a connection. Without them, the system
// keeps megabytes for a caller that does not read, or that sends on while the
// node is busy with something else.
const (
	sendBuffer    = 64 << 10 // bytes that wait to be sent
	receiveBuffer = 64 << 10 // bytes that have not been read; a caller may send that many in a round trip
)

// assumedFiles is the limit of open files where the system does not tell.
const assumedFiles = 512 << 10

// Listen binds an address for a door.
func Listen(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: boundSocket}
	config.SetMultipathTCP(false) // its connections would not inherit the bounds
	return config.Listen(context.Background(), "tcp", address)
}
