package process

import "testing"

// The system hands out a port by itself to whoever asks for none in particular,
// so FreePort must not return one of these.
func TestFreePort(t *testing.T) {
	for range 100 {
		port := FreePort(t)
		if port < minFreePort || port > maxFreePort {
			t.Fatalf("got port %d, want one of %d…%d", port, minFreePort, maxFreePort)
		}
	}
}
