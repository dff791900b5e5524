package api

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateInterval is how often the files are looked at, at most.
const certificateInterval = time.Second

// certificate is a certificate and key that follow their files.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex // guards what follows
	pair   *tls.Certificate
	seen   [2]fileMark // of the pair in use, or of one that was no good
	looked time.Time
}

// fileMark tells a file from what it was before.
type fileMark struct {
	changed time.Time
	size    int64
	err     string
}

// loadCertificate reads the pair, which must be good to begin with.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log, looked: time.Now()}
	c.seen = c.marks()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
	}
	c.pair = &pair
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(time.Now()), nil },
	}
}

// current returns the pair, read again if the files have changed. A pair that is no good leaves the old in use.
func (c *certificate) current(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) < certificateInterval {
		return c.pair
	}
	c.looked = now
	marks := c.marks()
	if marks == c.seen {
		return c.pair
	}
	c.seen = marks
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		c.log.Error("certificate not reloaded, the old one stays in use", "cert", c.certFile, "key", c.keyFile, "error", err)
		return c.pair
	}
	c.log.Info("certificate reloaded", "cert", c.certFile)
	c.pair = &pair
	return c.pair
}

func (c *certificate) marks() (m [2]fileMark) {
	for i, name := range [...]string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err != nil {
			m[i].err = err.Error()
		} else {
			m[i] = fileMark{changed: info.ModTime(), size: info.Size()}
		}
	}
	return m
}
