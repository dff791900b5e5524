package api

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/internal/files"
)

// certificate is a certificate and key that follow their files. A pair that is no good leaves the old in use.
type certificate struct {
	*files.Followed[*tls.Certificate]
}

// loadCertificate reads the pair, which must be good to begin with.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (certificate, error) {
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
		}
		return &pair, nil
	}
	followed, err := files.Follow(load, func(err error) {
		if err != nil {
			log.Error("certificate not reloaded, the old one stays in use", "cert", certFile, "key", keyFile, "error", err)
		} else {
			log.Info("certificate reloaded", "cert", certFile)
		}
	}, certFile, keyFile)
	return certificate{followed}, err
}

func (c certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.At(time.Now()), nil },
	}
}
