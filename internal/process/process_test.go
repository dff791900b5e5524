package process

import "testing"

// Linux gives ports above maxFreePort to those who ask for any port. FreePort must
// not return one of these, nor one port to two nodes of a test.
func TestFreePort(t *testing.T) {
	returned := map[int]bool{}
	for range 500 {
		port := FreePort(t)
		if port < minFreePort || port > maxFreePort {
			t.Fatalf("got port %d, want one of %d…%d", port, minFreePort, maxFreePort)
		}
		if returned[port] {
			t.Fatalf("got port %d twice", port)
		}
		returned[port] = true
	}
}
