package process

import "testing"

// Linux gives ports above maxFreePort to those who ask for any port. FreePort must
// not return one of these.
func TestFreePort(t *testing.T) {
	for range 100 {
		port := FreePort(t)
		if port < minFreePort || port > maxFreePort {
			t.Fatalf("got port %d, want one of %d…%d", port, minFreePort, maxFreePort)
		}
	}
}
