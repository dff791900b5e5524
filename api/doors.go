package api

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/reload"
)

// Doors is the state that all doors of a node share. A door serves one
// protocol: it authorises callers by their tokens, asks the decider, and
// answers.
type Doors struct {
	Config // as passed to Open; Logger is never nil
	Readiness
	Budget Budget
	TLS    *tls.Config  // for the listeners; nil: they use plain text
	Panics atomic.Int64 // panics caught in handlers

	lastReport atomic.Pointer[healthReport]
	reporting  sync.Mutex // held by the goroutine that makes the next report

	tokens *tokens
	pair   *reload.Files[*tls.Certificate] // nil without TLS

	seatsOnce sync.Once // sets dataSeats
	dataSeats *seatPool

	connsMu sync.Mutex     // guards conns
	conns   []*Connections // of all doors
}

// Open reads the tokens and the certificate, and reloads them when their files
// change. Checks get NotReady until Ready.
func Open(config Config) (*Doors, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("open API: %w", err)
	}

	d := &Doors{Config: config}
	d.Readiness.checkReady = config.CheckReady
	d.Readiness.checkMember = config.CheckMember
	d.Readiness.drain = make(chan struct{})
	d.Logger = cmp.Or(d.Logger, slog.Default())
	if config.CertFile != "" {
		pair, err := loadCertificate(config.CertFile, config.KeyFile, d.Logger)
		if err != nil {
			return nil, fmt.Errorf("open API: %w", err)
		}
		d.TLS = serverTLS(pair)
		d.pair = pair
	}

	var err error
	d.tokens, err = openTokens(&d.Config, d.Logger, d.distrustAll)
	if err != nil {
		return nil, fmt.Errorf("open API: %w", err)
	}

	return d, nil
}

// Ready lets checks in. A node without rules in force can't decide anything, and stays not ready.
func (d *Doors) Ready() {
	if d.Decider.Rules() == nil {
		d.Logger.Error("not ready: no rules in force")
		d.Explain("there are no rules in force")
		return
	}
	d.advance(stage{state: stateReady})
}

// Close stops following the tokens file. The doors must already be closed.
func (d *Doors) Close() { d.tokens.close() }

// Metrics reports the metrics that all doors share.
func (d *Doors) Metrics(s metrics.Sink) {
	if set := d.Decider.Rules(); set != nil {
		s.Gauge("rules_version", "Version of the rules in force.", float64(set.Version))
	}
	if d.pair != nil {
		metrics.CertificateExpiry(s, "http", d.pair.Current(time.Now()))
	}
	s.Flag("ready", "1 if the node is ready, else 0.", d.ProbeError() == nil)
	s.Count("panics_total", "Panics caught in handlers. Anything but 0 is a bug.", d.Panics.Load())
	s.Count("connections_ended_total",
		"Connections closed to make room in the memory for large or unfinished requests and answers: "+
			"strangers first, then slow ones.",
		d.Budget.ClosedForRoom())
}
