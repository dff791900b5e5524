package api

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/internal/reload"
)

// loadCertificate loads a certificate with its key, and reloads them when the
// files change. An invalid pair is an error at first. On a reload, the old pair
// stays in use instead.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*reload.Files[*tls.Certificate], error) {
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
		}
		return &pair, nil
	}

	report := func(_ *tls.Certificate, err error) {
		if err != nil {
			log.Error("certificate not reloaded, the old one stays in use", "error", err)
			return
		}
		log.Info("certificate reloaded", "cert", certFile)
	}

	return reload.Open(load, report, certFile, keyFile)
}

// serverTLS returns the TLS configuration of a listener that always presents
// the current certificate.
func serverTLS(pair *reload.Files[*tls.Certificate]) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Current(time.Now()), nil },
	}
}
