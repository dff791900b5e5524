package metrics

import (
	"crypto/tls"
	"time"
)

// CertificateExpiry shows for how long a certificate is valid; use says what it is for.
func CertificateExpiry(s Sink, use string, pair *tls.Certificate) {
	if pair == nil || pair.Leaf == nil {
		return
	}
	s.Gauge("certificate_expiry_seconds", "Time until a certificate ends; negative once it has.",
		time.Until(pair.Leaf.NotAfter).Seconds(), "use", use)
}
